"""Reports: a page that explains a log, a live view of one, and a log in a notebook.

``story`` holds all that a log says as values (from ``verdict``, ``evidence`` and ``explain``);
``figures`` draws it, ``tables`` writes it out, ``page`` puts both on one HTML page. matplotlib,
jinja2 and pandas are imported where they are used.
"""

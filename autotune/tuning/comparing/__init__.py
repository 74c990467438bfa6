"""Two settings in pairs of windows: the certificate, a replayed result, drift."""

"use strict";
for (const box of document.querySelectorAll(".copy")) {
  const button = box.querySelector("button"), text = box.querySelector("pre").textContent;
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(box.querySelector("pre"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}
const openAll = (open) => document.querySelectorAll("details").forEach((one) => { one.open = open; });
addEventListener("beforeprint", () => openAll(true));
const follow = Number(document.body.dataset.follow || 0);
if (follow) {
  // What a reader has opened, and where they are, survives the page's being read again.
  const key = "autotune-report:" + location.pathname, all = [...document.querySelectorAll("details")];
  let kept = {};
  try { kept = JSON.parse(sessionStorage.getItem(key) || "{}"); } catch { /* begins anew */ }
  (kept.open || []).forEach((index) => { if (all[index]) all[index].open = true; });
  if (kept.y) scrollTo(0, kept.y);
  const pause = document.getElementById("pause");
  let paused = Boolean(kept.paused);
  const show = () => {
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
  };
  const keep = () => {
    const open = all.map((one, index) => one.open ? index : -1).filter((index) => index >= 0);
    try {
      sessionStorage.setItem(key, JSON.stringify({ open, y: scrollY, paused }));
    } catch { /* nothing is kept */ }
  };
  pause.addEventListener("click", () => { paused = !paused; show(); keep(); });
  show();
  setInterval(() => {
    if (paused || document.hidden || !getSelection().isCollapsed) return;
    keep();
    location.reload();
  }, 1000 * follow);
}

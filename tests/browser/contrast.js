// Returns the contrast of every piece of text with what is behind it (WCAG 2.2, "contrast ratio").
const parse = (text) => {
  const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
  return { r, g, b, a };
};
const over = (top, below) => ({
  r: top.r * top.a + below.r * (1 - top.a),
  g: top.g * top.a + below.g * (1 - top.a),
  b: top.b * top.a + below.b * (1 - top.a),
  a: 1,
});
const luminance = ({ r, g, b }) => {
  const [x, y, z] = [r, g, b].map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const paper = (element) => {
  const behind = [];
  for (let one = element; one instanceof Element; one = one.parentElement) {
    behind.push(parse(getComputedStyle(one).backgroundColor));
  }
  return behind.reverse().reduce((below, top) => over(top, below), { r: 255, g: 255, b: 255, a: 1 });
};
const all = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
  if (!text || !element || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
  if (["title", "desc"].includes(element.tagName) || !element.checkVisibility()) continue;
  const style = getComputedStyle(element), isSvg = element instanceof SVGElement;
  const back = paper(element), ink = over(parse(isSvg ? style.fill : style.color), back);
  const [light, dark] = [luminance(ink), luminance(back)].sort((x, y) => y - x);
  all.push({ text: text.slice(0, 40), contrast: (light + 0.05) / (dark + 0.05) });
}
return { texts: all.length, all: all.filter((one) => one.contrast < 7) };

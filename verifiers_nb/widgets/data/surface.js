// A text area over a drawing of its text, line by line the same: what is typed is seen at once, its marks when the kernel has read it.

// How many characters two texts share at their beginnings, and how many more at their ends.
function sharedEnds(a, b) {
  const most = Math.min(a.length, b.length);
  let start = 0, end = 0;
  while (start < most && a[start] === b[start]) start += 1;
  while (end < most - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  return [start, end];
}

// Change the drawn text where the typed one differs, so that the marks around it stay on their characters.
function followTyped(drawn, text) {
  const before = drawn.textContent, [start, end] = sharedEnds(before, text), stop = before.length - end;
  const nodes = document.createTreeWalker(drawn, NodeFilter.SHOW_TEXT);
  let at = 0, fresh = text.slice(start, text.length - end);
  for (let node = nodes.nextNode(); node; node = nodes.nextNode()) {
    const size = node.length, from = Math.max(start - at, 0), to = Math.min(stop - at, size);
    if (from < size + (start === stop) && to >= from) { node.replaceData(from, to - from, fresh); fresh = ""; }
    at += size;
  }
  if (fresh) drawn.append(fresh);
}

const isUnread = (old, fresh) => old.unread && old.unread !== fresh.dataset.edit;

// Note that the drawing is of an older text until the kernel has read this one.
function noteTyped(area) {
  const surface = area.closest(".vf-surface");
  if (!surface) return;
  surface.unread = area.dataset.edit = String(Math.random());
  followTyped(surface.querySelector(".vf-text"), area.value);
}

// After a drawing: the text area has the text that is drawn, unless a later one was typed.
function fillSurface(root) {
  const surface = root.querySelector(".vf-surface");
  if (!surface || isUnread(surface, surface)) return;
  surface.unread = undefined;
  const area = surface.querySelector("textarea"), text = surface.querySelector(".vf-text").textContent;
  if (area.value !== text) area.value = text;
}


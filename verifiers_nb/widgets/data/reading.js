// What a reader does without the kernel: ask for keys, leave a field, jump, copy.

// Keys without a button, each where it works.
const FIXED = [["↑ ↓ j k", "The row above or below", "[data-list] [tabindex]"], ["Home End", "The first or last row", "[data-list] [tabindex]"],
  ["Enter", "Open a row", "[data-list] [tabindex]"], ["Enter", "Apply what is typed", "[data-enter]"],
  ["+ −", "Zoom, in the curves", "[data-plot]"], ["← → 0", "Earlier, later and all steps, in the curves", "[data-plot]"],
  ["Esc", "Leave a field", "input, textarea"], ["?", "These keys", "*"]];

// The elements that keys press now: of several with one key the first that can be pressed.
function boundKeys(root) {
  const found = new Map();
  for (const node of root.querySelectorAll("[aria-keyshortcuts]:not([disabled])")) {
    const key = node.getAttribute("aria-keyshortcuts");
    if (!found.has(key) && node.checkVisibility()) found.set(key, node);
  }
  return found;
}

const nameOf = (node) => node.getAttribute("aria-label") ?? node.labels?.[0]?.firstChild.textContent ?? node.textContent;

function showKeys(root) {
  const dialog = document.createElement("dialog"), list = document.createElement("dl"), before = document.activeElement;
  const bound = [...boundKeys(root)].map(([key, node]) => [key, nameOf(node)]);
  for (const [key, what] of [...bound, ...FIXED.filter(([, , where]) => root.querySelector(where))]) {
    list.append(Object.assign(document.createElement("dt"), { textContent: key }));
    list.append(Object.assign(document.createElement("dd"), { textContent: what }));
  }
  dialog.className = "vf vf-keys";
  dialog.setAttribute("aria-label", "Keys");
  dialog.append(list);
  dialog.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => { dialog.remove(); (root.contains(before) ? before : root).focus({ preventScroll: true }); });
  root.after(dialog);
  dialog.showModal();
}

// Handle a key in a field or in the help; say whether it was for us.
function typedKey(root, event) {
  const dialog = event.target.closest(".vf-keys");
  if (dialog) {
    if (["?", "Enter", " ", "Escape"].includes(event.key)) { event.preventDefault(); dialog.close(); }
    return true;
  }
  if (event.key === "Escape") root.focus({ preventScroll: true });
  return event.key === "Escape" || event.key === "Enter" && event.target.matches("input");  // whose change event follows
}

function reveal(area, node) {
  for (let fold = node.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  area.scrollTop += node.getBoundingClientRect().top - area.getBoundingClientRect().top - area.clientHeight / 8;
}

function jump(root, node) {
  const to = node.dataset.jump;
  for (const area of (node.closest("article") ?? root).querySelectorAll("[data-scroll]")) {
    const found = [...area.querySelectorAll(".vf-found")], message = area.querySelector(`section[data-message="${CSS.escape(to)}"]`);
    if (to === "start" || to === "end") area.scrollTop = to === "end" ? area.scrollHeight : 0;
    else if (message) reveal(area, message);
    else if (found.length) reveal(area, found[area.foundAt = ((area.foundAt ?? -1) + 1) % found.length]);
  }
}

// Fill the outline of each long conversation: a line for each message that is drawn.
function outline(root) {
  for (const nav of root.querySelectorAll("[data-outline]")) {
    const sections = [...nav.nextElementSibling.querySelectorAll("section[data-message]")];
    if (nav.filled === sections.length) continue;
    nav.filled = sections.length;
    const fold = nav.querySelector("details") ?? nav.appendChild(document.createElement("details")), rows = document.createElement("div");
    const summary = Object.assign(document.createElement("summary"), { textContent: `Outline: ${sections.length} messages` });
    fold.open = true;
    rows.dataset.list = "";
    for (const section of sections) {
      const row = document.createElement("div"), said = section.querySelector(".vf-text, .vf-rendered, .vf-call")?.textContent ?? "";
      const [role, turn] = section.querySelectorAll("header > :is(b, small)"), number = Number(section.dataset.message);
      for (const text of [number + 1, role.textContent, turn?.textContent ?? "", said.trim().slice(0, 100)]) {
        row.appendChild(document.createElement("span")).textContent = text;
      }
      row.className = section.className.replace("vf-message", "");
      row.dataset.jump = number;
      row.tabIndex = rows.childElementCount ? -1 : 0;
      row.setAttribute("role", "button");
      rows.append(row);
    }
    fold.replaceChildren(summary, rows);
  }
}

// Put the message of a press beside what was pressed: in sight, and without moving what is below.
function placeNote(root, pressed) {
  const note = [...root.querySelectorAll(".vf-note")].find((each) => each.textContent);
  if (!note || !pressed?.isConnected || !root.contains(pressed)) return;
  const from = (note.offsetParent ?? root).getBoundingClientRect(), at = pressed.getBoundingClientRect();
  note.classList.add("vf-beside");
  const left = Math.max(0, Math.min(at.left - from.left, from.width - note.offsetWidth));
  note.style.cssText = `left:max(0px, min(${left}px, calc(100% - ${note.offsetWidth}px)));top:${at.bottom - from.top + 6}px`;
}

function announce(root, text) {
  const note = Object.assign(document.createElement("div"), { className: "vf-toast", textContent: text, role: "status" });
  root.after(note);
  setTimeout(() => note.remove(), 4000);
}

async function copyText(root, text) {
  try { await navigator.clipboard.writeText(text); } catch {  // an address that is not secure, or a frame that may not
    const box = Object.assign(document.createElement("textarea"), { value: text }), focused = document.activeElement;
    root.after(box);
    box.select();
    const copied = document.execCommand("copy");
    box.remove();
    focused?.focus({ preventScroll: true });
    if (!copied) return announce(root, "The browser does not let this page copy.");
  }
  announce(root, `${text.length.toLocaleString("en")} characters are copied.`);
}


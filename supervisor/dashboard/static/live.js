// Refreshes what changes on a page, in place: only nodes that differ are touched, so focus, selection, scroll
// and open details stay. Without it everything works by links and forms; this only saves reloading.
//
//   <body data-refresh="2">   seconds between two looks
//   <... id="x" data-live>    a part that is taken over from the new page
//
// It rests while the window is hidden and while somebody types or has marked text in a live part.
import { Idiomorph } from "./idiomorph.js";

const seconds = Number(document.body.dataset.refresh);
const notice = document.getElementById("stale");
let failures = 0;

// Whether a <details> is open is the reader's, not the page's.
const callbacks = { beforeAttributeUpdated: (name, node) => !(name === "open" && node.matches("details")) };

function busy() {
  const active = document.activeElement;
  const typing = active && active.closest("[data-live]") && active.matches("input:not([type=checkbox]), select, textarea");
  const marked = document.getSelection();
  const reading = marked && !marked.isCollapsed && marked.anchorNode?.parentElement?.closest("[data-live]");
  const chosen = document.querySelector("[data-live] input[type=checkbox]:checked");
  return document.hidden || typing || reading || chosen;
}

async function look() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "manual" });
  if (answer.type === "opaqueredirect") location.reload(); // the session has ended: to the login page
  if (!answer.ok && answer.status !== 503) throw new Error(answer.status);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (busy()) return;
  if (page.body.dataset.page !== document.body.dataset.page) {
    // It has become another page: a problem, or the end of one.
    if (answer.ok) location.reload();
    else throw new Error(answer.status);
    return;
  }
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(part.id);
    if (fresh) Idiomorph.morph(part, fresh, { morphStyle: "outerHTML", ignoreActiveValue: true, callbacks });
  }
}

async function again() {
  if (!busy()) {
    try {
      await look();
      failures = 0;
      notice.hidden = true;
    } catch {
      failures += 1;
      notice.hidden = failures < 2;
    }
  }
  setTimeout(again, seconds * 1000 * Math.min(8, 2 ** failures));
}

if (seconds > 0) setTimeout(again, seconds * 1000);

// Long lists: one box chooses all of the page.
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-choose-all]")) {
    for (const box of event.target.form.querySelectorAll("input[name=id]")) box.checked = event.target.checked;
  }
});

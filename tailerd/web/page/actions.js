// What an operator may do to a table: asked for once more, in words that say what it means.

import { el } from "./dom.js";
import { Refused, act, setToken } from "./stream.js";

const dialog = () => document.getElementById("dialog");

function show(...children) {
  const box = dialog();
  box.replaceChildren(...children);
  if (!box.open) box.showModal();
  return box;
}

export function toast(text, kind) {
  const box = document.getElementById("toast");
  box.dataset.kind = kind || "";
  box.textContent = text;
  box.classList.add("is-shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => box.classList.remove("is-shown"), kind === "error" ? 12000 : 5000);
}

// Shows a question with two buttons; resolves to what `read` returns for the answer yes or no.
function ask(parts, buttons, read) {
  return new Promise((resolve) => {
    const form = el(
      "form",
      { method: "dialog" },
      ...parts,
      el(
        "div",
        { class: "buttons" },
        el("button", { type: "button", onclick: () => dialog().close("no") }, buttons.no),
        el("button", { type: "submit", class: buttons.kind, value: "yes" }, buttons.yes),
      ),
    );
    const box = show(form);
    box.addEventListener(
      "close",
      () => {
        const isYes = box.returnValue === "yes";
        box.returnValue = "";
        resolve(read(isYes));
      },
      { once: true },
    );
  });
}

// Asks for the token; false where it was not given.
export function askToken(why) {
  const field = el("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const parts = [
    el("h2", { id: "dialog-title" }, "Token needed"),
    el("p", {}, why),
    el("label", { for: "token" }, "Token (http.token of the configuration)"),
    field,
    el("p", { class: "note" }, "It is kept in the memory of this page until the page is closed."),
  ];
  const answer = ask(parts, { no: "Not now", yes: "Use it", kind: "primary" }, (isYes) => {
    const given = isYes ? field.value.trim() : "";
    field.value = "";
    if (given) setToken(given);
    return Boolean(given);
  });
  field.focus();
  return answer;
}

const KEYS = [
  ["/", "Filter the tables"],
  ["↑ ↓ or j k", "Next and previous table"],
  ["Enter", "Open it"],
  ["Esc", "Back to all tables"],
  ["1 … 9, [ ]", "Tabs of a table"],
  ["← →", "Along a chart that has the focus"],
  ["g f, g d, g h", "Tables, daemon, documentation"],
  ["?", "This list"],
];

export function showKeys() {
  const rows = KEYS.map(([keys, words]) => el("div", {}, el("dt", {}, el("kbd", {}, keys)), el("dd", {}, words)));
  show(el("form", { method: "dialog" }, el("h2", { id: "dialog-title" }, "Keyboard"), el("dl", { class: "pairs" }, ...rows), el("div", { class: "buttons" }, el("button", { type: "submit", class: "primary" }, "Close"))));
}

const ACTIONS = {
  pause: {
    label: "Pause",
    title: "Pause",
    words: ["What is in flight is finished and its offset saved; then nothing more is delivered.", "It stays paused over restarts until it is resumed. Its lag is still measured; commits that are cleaned up meanwhile are lost to it."],
    done: "is paused.",
  },
  resume: {
    label: "Resume",
    title: "Resume",
    words: ["Delivery resumes at the saved offset; nothing is lost or duplicated. A failed pipeline is retried: if the cause is not fixed, it fails again with the same error."],
    done: "resumed.",
  },
  maintain: {
    label: "Run maintenance",
    title: "Run maintenance on the log of",
    words: ["A checkpoint of the newest version is written if there are commits since the last one, and so is everything else that is due by the policy.", "Only the log is touched: no commit is written and no data file is changed. It runs in parallel to the deliveries."],
    done: "will be maintained now; the result appears on its page.",
  },
  reset: {
    label: "Reset…",
    title: "Reset the offset of",
    words: [],
    done: "was reset.",
    isDangerous: true,
  },
};

function resetChoice() {
  const version = el("input", { type: "text", id: "place", "aria-label": "Version or timestamp", placeholder: "12 or 2026-11-21T03:00:00Z", spellcheck: "false", autocomplete: "off" });
  const choices = [
    ["snapshot", "Snapshot", "Every row of the newest version is delivered again as an insert, then what follows. Readers see rows they had before."],
    ["latest", "Latest", "Only what is committed from now on is delivered. Versions that are not delivered yet never arrive; the next step shows how many."],
    ["place", "A version or time", "Delivery restarts there: earlier deliveries are repeated, or the versions in between are skipped."],
  ];
  const group = el(
    "fieldset",
    {},
    el("legend", {}, "Where delivery resumes"),
    ...choices.map(([value, label, words]) =>
      el("label", { class: "choice" }, el("input", { type: "radio", name: "to", value, required: true }), el("span", {}, el("strong", {}, label), el("span", {}, words))),
    ),
    version,
  );
  version.addEventListener("input", () => {
    group.querySelector("input[value=place]").checked = true;
  });
  return {
    node: group,
    value() {
      const chosen = group.querySelector("input[name=to]:checked");
      if (!chosen) return "";
      return chosen.value === "place" ? version.value.trim() : chosen.value;
    },
  };
}

function confirmAction(name, action) {
  const words = ACTIONS[action];
  const choice = action === "reset" ? resetChoice() : null;
  const parts = [
    el("h2", { id: "dialog-title" }, `${words.title} `, el("span", { class: "name" }, name), "?"),
    ...words.words.map((text) => el("p", {}, text)),
    choice && choice.node,
  ];
  const buttons = { no: "Cancel", yes: words.label.replace("…", ""), kind: words.isDangerous ? "danger" : "primary" };
  return ask(parts, buttons, (isYes) => (isYes && (!choice || choice.value()) ? { to: choice ? choice.value() : null } : null));
}

// Asks again if a reset skips versions. Resolves to the exact starting point, or null.
async function confirmSkip(name, requested) {
  const { skipped, offset } = await act(name, "reset", { to: requested, preview: true });
  // Commits that come from now on are not part of the answer.
  const to = offset.phase === "follow" ? String(offset.version) : requested;
  if (!skipped) return to;
  const parts = [
    el("h2", { id: "dialog-title" }, "Skip undelivered versions of ", el("span", { class: "name" }, name), "?"),
    el("p", {}, `This reset skips ${skipped.text}. They are never delivered; the gap is recorded.`),
  ];
  return ask(parts, { no: "Cancel", yes: "Skip them", kind: "danger" }, (isYes) => (isYes ? to : null));
}

async function perform(name, action) {
  const answer = await confirmAction(name, action);
  if (!answer) return;
  for (;;) {
    try {
      const to = answer.to && (await confirmSkip(name, answer.to));
      if (answer.to && !to) return;
      await act(name, action, to ? { to } : undefined);
      toast(`${name} ${ACTIONS[action].done}`);
      return;
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        if (await askToken("This daemon requires its token for changes.")) continue;
        return;
      }
      toast(error.message, "error");
      return;
    }
  }
}

// Buttons for what fits a table's state; a table that is only maintained has nothing to pause.
export function actionButtons(name, row) {
  const isHeld = ["paused", "failed", "stopped"].includes(row.state);
  const all = [];
  if (row.sink) all.push(isHeld ? "resume" : "pause");
  if (row.is_maintained) all.push("maintain");
  if (row.sink && row.engine === "arrow") all.push("reset");
  return all.map((action) => el("button", { type: "button", "data-action": action, class: ACTIONS[action].isDangerous ? "danger quiet" : "", onclick: () => perform(name, action) }, ACTIONS[action].label));
}

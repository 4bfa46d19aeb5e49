// A form for an agent's request: a permission or a few questions.
//
// `spec` describes the form; {} hides it. All of its values go into the page as text, never as
// markup. An answer is sent once; the form is then disabled until a new spec arrives. If the new
// spec has the same id, the answer did not arrive or its effects changed: the input stays as it
// is. It also stays when the form moves down in the cell, which creates a new view.

const READ_DELAY = 500; // ms to read a new request; an earlier click was meant for the one before
const ANSWER_TIMEOUT = 5000; // ms for a running cell to take an answer
const NO_ANSWER = "Nothing is answered yet. Please answer, or dismiss the form.";
const NOT_RECEIVED = "The cell has not received the answer yet. If it is no longer running, %oc_attach asks again.";

function make(tag, text = "", props = {}) {
  const node = Object.assign(document.createElement(tag), props);
  node.textContent = text;
  return node;
}

const LOOK = { "+": "added", "-": "removed", "@": "hunk" };

// Consecutive lines of one kind share an element: a browser took 6 s for 200,000 elements.
function diff(lines) {
  const runs = [];
  for (const [kind, text] of lines) {
    if (kind !== runs.at(-1)?.kind) runs.push({ kind, texts: [] });
    runs.at(-1).texts.push(`${text}\n`);
  }
  const pre = make("pre", "", { className: "oc-ask-diff" });
  for (const { kind, texts } of runs) {
    pre.append(make("span", texts.join(""), { className: `oc-ask-${LOOK[kind] ?? "plain"}` }));
  }
  return pre;
}

// What the request is about: a label and a text, folded if it is long.
function detail({ label, text, folded }) {
  const node = make(folded ? "details" : "div", "", { className: folded ? "" : "oc-ask-detail" });
  node.append(make(folded ? "summary" : "span", label), make("pre", text));
  return node;
}

function permission(spec, send) {
  const message = make("input", "", { type: "text", placeholder: "what it should do instead" });
  const label = make("label", "Message with a rejection: ");
  label.append(message);

  const buttons = make("div", "", { className: "oc-ask-buttons" });
  const effects = make("ul", "", { className: "oc-ask-effects" });
  const reply = (value) => send({ reply: value, message: message.value });
  for (const choice of spec.choices) {
    const effect = make("li", "", { id: `${spec.id}-${choice.value}` });
    effects.append(effect);
    const button = make("button", choice.label, { type: "button" });
    button.dataset.reply = choice.value;
    button.setAttribute("aria-describedby", effect.id);
    button.onclick = () => reply(choice.value);
    buttons.append(button);
  }
  let choices = spec.choices;
  const explain = () => {
    for (const [n, choice] of choices.entries()) {
      const hasMessage = message.value.trim() && choice.with_message;
      effects.children[n].textContent = hasMessage ? choice.with_message : choice.effect;
    }
  };
  const update = (spec) => {
    choices = spec.choices;
    explain();
  };
  message.oninput = explain;
  message.onkeydown = (event) => {
    if (event.key === "Enter" && !event.isComposing && message.value.trim()) reply("reject");
  };
  const details = spec.details.map(detail);
  const changes = spec.diff.length ? [diff(spec.diff)] : [];
  const messageField = spec.choices.some((choice) => choice.with_message) ? [label] : [];
  return { nodes: [...details, ...changes, buttons, ...messageField, effects], update };
}

function item(spec, question, number) {
  const set = make("fieldset");
  const { header, question: text } = question;
  set.append(make("legend", header && text ? `${header}: ${text}` : header || text));
  if (question.note) set.append(make("small", question.note));
  for (const [n, option] of question.options.entries()) {
    const input = make("input", "", {
      type: question.multiple ? "checkbox" : "radio",
      name: `${spec.id}-${number}`,
      value: option.label,
      checked: option.chosen,
    });
    input.dataset.value = option.value;
    const label = make("label", "", { className: "oc-ask-option" });
    const name = make("span", option.label, { id: `${input.name}-${n}` });
    const description = make("small", option.description, { id: `${name.id}-more` });
    input.setAttribute("aria-labelledby", name.id);
    input.setAttribute("aria-describedby", description.id);
    const caption = make("span");
    caption.append(name, description);
    label.append(input, caption);
    set.append(label);
  }
  const own = make("input", "", {
    type: question.input,
    min: question.least ?? "",
    max: question.most ?? "",
    step: question.step,
    value: question.own,
  });
  if (question.input) {
    const label = make("label", question.options.length ? "Or in your own words: " : "Your answer: ");
    label.append(own);
    set.append(label);
  }
  const answers = () => [
    ...[...set.querySelectorAll("input:checked")].map((input) => input.value),
    ...(own.value.trim() ? [own.value.trim()] : []),
  ];
  // The answers as option values, which conditions compare; without an answer, the default.
  const values = () => {
    const typed = own.value.trim();
    const current = [
      ...[...set.querySelectorAll("input:checked")].map((input) => input.dataset.value),
      ...(typed ? [own.type === "number" ? String(Number(typed)) : typed] : []),
    ];
    return current.length ? current : question.default;
  };
  // Checks that the page can do; the kernel does the others before it sends the answer.
  const error = () => {
    if (own.validationMessage) return own.validationMessage;
    return question.required && !answers().length ? "an answer is needed" : "";
  };
  // A single-choice question has one answer: typing clears the choice, choosing clears the text.
  if (!question.multiple) {
    own.oninput = () => {
      for (const input of set.querySelectorAll("input:checked")) input.checked = false;
    };
    set.addEventListener("change", (event) => {
      if (event.target.type === "radio") own.value = "";
    });
  }
  return { set, answers, values, error, name: header || text };
}

function questions(spec, send, say) {
  const form = make("form", "", { noValidate: true }); // the note shows the errors
  const items = spec.items.map((question, number) => item(spec, question, number));
  // A question applies if the answers to others meet its conditions; otherwise it has no answer.
  const applies = (at, above = []) => spec.items[at].when.every(([key, op, value]) => {
    const other = spec.items.findIndex((question) => question.key === key);
    const known = other >= 0 && other !== at && !above.includes(other);
    const answers = known && applies(other, [...above, at]) ? items[other].values() : [];
    return answers.includes(value) === (op === "eq");
  });
  const applicable = () => items.filter((_, at) => applies(at));
  const update = () => {
    const shown = applicable();
    for (const question of items) question.set.hidden = !shown.includes(question);
  };
  for (const kind of ["input", "change"]) form.addEventListener(kind, update);
  const effect = make("li", spec.dismissal, { id: `${spec.id}-dismiss` });
  const answer = make("button", "Answer", { type: "submit" });
  const dismiss = make("button", "Dismiss", { type: "button" });
  dismiss.dataset.reply = "dismiss";
  dismiss.setAttribute("aria-describedby", effect.id);
  dismiss.onclick = () => send({ reply: "dismiss" });
  const buttons = make("div", "", { className: "oc-ask-buttons" });
  buttons.append(answer, dismiss);
  form.onsubmit = (event) => {
    event.preventDefault();
    const shown = applicable();
    const answers = items.map((question) => (shown.includes(question) ? question.answers() : []));
    const errors = shown.flatMap(({ error, name }) => (error() ? [`${name}: ${error()}`] : []));
    if (errors.length) say(errors.join("\n"));
    else if (spec.items.some(({ asks }) => asks) && !answers.flat().length) say(NO_ANSWER);
    else send({ reply: "answer", answers });
  };
  const effects = make("ul", "", { className: "oc-ask-effects" });
  effects.append(effect);
  form.append(...items.map(({ set }) => set), buttons, effects);
  return { nodes: [form], update };
}

const controlsOf = (root) => [...root.querySelectorAll("button, input")];

// `shared` is the state that all views of a form share: `id` of the request, `since` when it is
// shown, `inputs` (the typed and chosen values), and `focus`: the index of the focused control, -1
// for the form itself, null for none.
function render({ model, el }, shared) {
  const root = make("div", "", { className: "oc-ask", tabIndex: -1 });
  root.setAttribute("role", "group");
  // Keys typed here must not trigger the notebook's shortcuts. In Notebook 7 its listener runs
  // before ours, so it needs the attribute.
  root.dataset.lmSuppressShortcuts = "true";
  root.addEventListener("keydown", (event) => event.stopPropagation());
  // A screen reader announces changes of these two.
  const title = make("div", "", { className: "oc-ask-title" });
  const body = make("div");
  const note = make("div", "", { className: "oc-ask-note" });
  for (const node of [title, note]) node.setAttribute("role", "status");
  root.append(title, body, note);
  el.append(root);

  let shown; // the id of the request
  let content;
  let sending = false;
  let decides = true; // false for a pause, whose buttons only continue
  let enableTimer, answerTimer;
  const say = (text) => { note.textContent = text; };
  const enable = () => {
    const unread = decides ? shared.since + READ_DELAY - performance.now() : 0;
    for (const control of controlsOf(root)) {
      control.disabled = sending || (unread > 0 && control.tagName === "BUTTON");
    }
    clearTimeout(enableTimer);
    if (unread > 0) enableTimer = setTimeout(enable, unread);
  };
  const send = (answer) => {
    sending = true;
    enable();
    say("Sending the answer.");
    answerTimer = setTimeout(() => say(NOT_RECEIVED), ANSWER_TIMEOUT);
    model.send({ kind: "answer", id: shown, ...answer });
  };
  const saveInputs = () => {
    shared.inputs = controlsOf(root).map(({ value, checked }) => ({ value, checked }));
  };
  root.addEventListener("input", saveInputs);
  root.addEventListener("change", saveInputs);
  root.addEventListener("focusin", (event) => {
    shared.focus = controlsOf(root).indexOf(event.target);
  });
  root.addEventListener("focusout", (event) => {
    // relatedTarget is null when the focused control is removed: keep its index for the next view.
    if (event.relatedTarget && !root.contains(event.relatedTarget)) shared.focus = null;
  });
  // A new view can't take the focus before it is in the page.
  const drawn = new ResizeObserver(() => {
    drawn.disconnect();
    if (shared.focus !== null && document.activeElement === document.body) {
      (controlsOf(root)[shared.focus] ?? root).focus({ preventScroll: true });
    }
  });
  const build = (spec) => {
    title.id = `${spec.id}-title`;
    root.setAttribute("aria-labelledby", title.id);
    content = spec.items ? questions(spec, send, say) : permission(spec, send);
    body.replaceChildren(...content.nodes);
    if (shared.id === spec.id) {
      for (const [n, control] of controlsOf(root).entries()) Object.assign(control, shared.inputs[n]);
    } else {
      // A keyboard user gets the next request focused, but not a button that a key could press.
      const focus = shared.focus === null ? null : -1;
      Object.assign(shared, { id: spec.id, since: performance.now(), inputs: [], focus });
    }
  };
  const draw = () => {
    const spec = model.get("spec");
    const isNew = spec?.id !== shown;
    shown = spec?.id;
    decides = spec?.decides ?? true;
    sending = false;
    clearTimeout(answerTimer);
    root.hidden = !shown;
    title.textContent = spec?.title ?? "";
    if (!shown) return;
    if (isNew) build(spec);
    content.update(spec);
    enable();
    say(spec.note);
    if (shared.focus !== null) drawn.observe(root);
  };
  root.hidden = true;
  model.on("change:spec", draw);
  draw();
  model.send({ kind: "ready" });
  return () => model.off("change:spec", draw);
}

export default () => {
  const shared = { id: null, since: 0, inputs: [], focus: null };
  return { render: (view) => render(view, shared) };
};

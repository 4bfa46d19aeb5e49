// One form for what an agent asks: a permission or a few questions.
//
// `spec` says what to show, "" or {} hides the form. Whatever it holds is put into the page as
// text, never as markup. An answer is sent once: the form is dead until a new spec comes.

function make(tag, text = "", props = {}) {
  const node = Object.assign(document.createElement(tag), props);
  node.textContent = text;
  return node;
}

const LOOK = { "+": "added", "-": "removed", "@": "hunk" };

function diff(lines) {
  const pre = make("pre", "", { className: "oc-ask-diff" });
  for (const [kind, text] of lines) {
    pre.append(make("span", `${text}\n`, { className: `oc-ask-${LOOK[kind] ?? "plain"}` }));
  }
  return pre;
}

function head(spec) {
  const parts = [make("div", spec.title, { className: "oc-ask-title", id: `${spec.id}-title` })];
  if (spec.subject) parts.push(make("pre", spec.subject, { className: "oc-ask-subject" }));
  if (spec.diff?.length) parts.push(diff(spec.diff));
  return parts;
}

function permission(spec, send) {
  const message = make("input", "", {
    type: "text",
    id: `${spec.id}-message`,
    placeholder: "what it should do instead",
  });
  const label = make("label", "Message with a rejection: ", { htmlFor: message.id });
  label.append(message);

  const buttons = make("div", "", { className: "oc-ask-buttons" });
  for (const choice of spec.choices) {
    const button = make("button", choice.label, { type: "button" });
    button.dataset.reply = choice.value;
    button.onclick = () => send({ reply: choice.value, message: message.value });
    buttons.append(button);
  }
  const effect = make("ul", "", { className: "oc-ask-effects" });
  const explain = () => {
    effect.replaceChildren(
      ...spec.choices.map((choice) => {
        const said = message.value.trim() && choice.with_message;
        return make("li", said ? choice.with_message : choice.effect);
      }),
    );
  };
  message.oninput = explain;
  explain();
  return [buttons, label, effect];
}

function item(spec, question, number) {
  const set = make("fieldset");
  set.append(make("legend", question.header ? `${question.header}: ${question.question}` : question.question));
  for (const [n, option] of question.options.entries()) {
    const input = make("input", "", {
      type: question.multiple ? "checkbox" : "radio",
      name: `${spec.id}-${number}`,
      value: option.label,
      id: `${spec.id}-${number}-${n}`,
    });
    const label = make("label", "", { htmlFor: input.id, className: "oc-ask-option" });
    label.append(input, make("span", option.label));
    if (option.description) label.append(make("small", option.description));
    set.append(label);
  }
  const own = make("input", "", { type: "text", id: `${spec.id}-${number}-own` });
  const words = question.options.length ? "Or in your own words: " : "Your answer: ";
  const label = make("label", words, { htmlFor: own.id });
  label.append(own);
  set.append(label);
  const answers = () => [
    ...[...set.querySelectorAll("input:checked")].map((input) => input.value),
    ...(own.value.trim() ? [own.value.trim()] : []),
  ];
  // One answer where one is asked for: typing takes the choice back, choosing empties the text.
  if (!question.multiple) {
    own.oninput = () => {
      for (const input of set.querySelectorAll("input:checked")) input.checked = false;
    };
    set.addEventListener("change", (event) => {
      if (event.target.type === "radio") own.value = "";
    });
  }
  return [set, answers];
}

function questions(spec, send) {
  const form = make("form");
  const items = spec.items.map((question, number) => item(spec, question, number));
  const answer = make("button", "Answer", { type: "submit" });
  const dismiss = make("button", "Dismiss", { type: "button" });
  dismiss.dataset.reply = "dismiss";
  dismiss.onclick = () => send({ reply: "dismiss" });
  const missing = make("span", "", { className: "oc-ask-note" });
  const buttons = make("div", "", { className: "oc-ask-buttons" });
  buttons.append(answer, dismiss, missing);
  form.onsubmit = (event) => {
    event.preventDefault();
    const answers = items.map(([, read]) => read());
    if (answers.some((chosen) => chosen.length === 0)) {
      missing.textContent = "Please answer every question, or dismiss them.";
      return;
    }
    send({ reply: "answer", answers });
  };
  form.append(...items.map(([set]) => set), buttons);
  form.append(make("ul", "", { className: "oc-ask-effects" }));
  form.lastChild.append(make("li", "Dismiss: no answer, and the turn stops."));
  return [form];
}

function render({ model, el }) {
  const root = make("div", "", { className: "oc-ask" });
  root.setAttribute("role", "group");
  // Keys typed here are not the notebook's shortcuts.
  root.addEventListener("keydown", (event) => event.stopPropagation());
  el.append(root);

  const draw = () => {
    const spec = model.get("spec");
    root.replaceChildren();
    root.hidden = !spec?.id;
    if (root.hidden) return;
    root.setAttribute("aria-labelledby", `${spec.id}-title`);
    const note = make("div", spec.note, { className: "oc-ask-note" });
    note.setAttribute("role", "status");
    const send = (answer) => {
      for (const control of root.querySelectorAll("button, input")) control.disabled = true;
      note.textContent = "Sending the answer.";
      model.send({ kind: "answer", id: spec.id, ...answer });
    };
    const body = spec.items ? questions(spec, send) : permission(spec, send);
    root.append(...head(spec), ...body, note);
  };
  model.on("change:spec", draw);
  draw();
  model.send({ kind: "ready" });
  return () => model.off("change:spec", draw);
}

export default { render };

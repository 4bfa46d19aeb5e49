// One form for what an agent asks: a permission or a few questions.
//
// `spec` says what to show, {} hides the form. Whatever it holds is put into the page as text,
// never as markup. An answer is sent once: the form is dead until a new spec comes. If that is the
// same request again, its answer did not arrive, or what an answer does has changed: what was typed
// and chosen is still there.

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
      const said = message.value.trim() && choice.with_message;
      effects.children[n].textContent = said ? choice.with_message : choice.effect;
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
  const subject = spec.subject ? [make("pre", spec.subject)] : [];
  const changes = spec.diff.length ? [diff(spec.diff)] : [];
  return { nodes: [...subject, ...changes, buttons, label, effects], update };
}

function item(spec, question, number) {
  const set = make("fieldset");
  const { header, question: asked } = question;
  set.append(make("legend", header && asked ? `${header}: ${asked}` : header || asked));
  for (const [n, option] of question.options.entries()) {
    const input = make("input", "", {
      type: question.multiple ? "checkbox" : "radio",
      name: `${spec.id}-${number}`,
      value: option.label,
    });
    const label = make("label", "", { className: "oc-ask-option" });
    const name = make("span", option.label, { id: `${input.name}-${n}` });
    const description = make("small", option.description, { id: `${name.id}-more` });
    input.setAttribute("aria-labelledby", name.id);
    input.setAttribute("aria-describedby", description.id);
    const words = make("span");
    words.append(name, description);
    label.append(input, words);
    set.append(label);
  }
  const own = make("input", "", { type: "text" });
  const words = question.options.length ? "Or in your own words: " : "Your answer: ";
  const label = make("label", words);
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

function questions(spec, send, say) {
  const form = make("form");
  const items = spec.items.map((question, number) => item(spec, question, number));
  const effect = make("li", "Dismiss: no answer, and the turn stops.", { id: `${spec.id}-dismiss` });
  const answer = make("button", "Answer", { type: "submit" });
  const dismiss = make("button", "Dismiss", { type: "button" });
  dismiss.dataset.reply = "dismiss";
  dismiss.setAttribute("aria-describedby", effect.id);
  dismiss.onclick = () => send({ reply: "dismiss" });
  const buttons = make("div", "", { className: "oc-ask-buttons" });
  buttons.append(answer, dismiss);
  form.onsubmit = (event) => {
    event.preventDefault();
    const answers = items.map(([, read]) => read());
    if (answers.every((chosen) => chosen.length)) send({ reply: "answer", answers });
    else say("Please answer every question, or dismiss them.");
  };
  const effects = make("ul", "", { className: "oc-ask-effects" });
  effects.append(effect);
  form.append(...items.map(([set]) => set), buttons, effects);
  return { nodes: [form], update() {} };
}

function render({ model, el }) {
  const root = make("div", "", { className: "oc-ask", tabIndex: -1 });
  root.setAttribute("role", "group");
  // Keys typed here are not the notebook's shortcuts. Notebook 7 hears them before we do.
  root.dataset.lmSuppressShortcuts = "true";
  root.addEventListener("keydown", (event) => event.stopPropagation());
  // A screen reader tells of what is put into these two.
  const title = make("div", "", { className: "oc-ask-title" });
  const body = make("div");
  const note = make("div", "", { className: "oc-ask-note" });
  for (const node of [title, note]) node.setAttribute("role", "status");
  root.append(title, body, note);
  el.append(root);

  let shown; // the id of what is asked
  let parts;
  let focused = false; // the last answer was given with the focus in here
  const say = (text) => { note.textContent = text; };
  const enable = (on) => {
    for (const control of root.querySelectorAll("button, input")) control.disabled = !on;
  };
  const send = (answer) => {
    focused = root.contains(document.activeElement);
    enable(false);
    say("Sending the answer.");
    model.send({ kind: "answer", id: shown, ...answer });
  };
  const draw = () => {
    const spec = model.get("spec");
    if (spec?.id !== shown) {
      shown = spec?.id;
      root.hidden = !shown;
      title.textContent = spec?.title ?? "";
      title.id = `${shown}-title`;
      root.setAttribute("aria-labelledby", title.id);
      parts = shown && (spec.items ? questions(spec, send, say) : permission(spec, send));
      body.replaceChildren(...(parts?.nodes ?? []));
    }
    parts?.update(spec);
    enable(true);
    say(spec?.note ?? "");
    // Who answers with keys finds the next request at once, though no button has the focus: a
    // key pressed twice must not answer what was not read.
    if (shown && focused && document.activeElement === document.body) {
      root.focus({ preventScroll: true });
    }
  };
  root.hidden = true;
  model.on("change:spec", draw);
  draw();
  model.send({ kind: "ready" });
  return () => model.off("change:spec", draw);
}

export default { render };

// One form for what an agent asks: a permission or a few questions.
//
// `spec` says what to show, {} hides the form. Whatever it holds is put into the page as text,
// never as markup. An answer is sent once: the form is dead until a new spec comes. If that is the
// same request again, its answer did not arrive, or what an answer does has changed: what was typed
// and chosen is still there. It is, too, when the form moves down in the cell, which is a new view.

const TO_READ = 500; // ms in which nobody has read a request: what is pressed was meant for another
const TO_HEAR = 5000; // ms in which a running cell hears an answer
const NOTHING = "Nothing is answered yet: please answer, or dismiss it.";
const UNHEARD = "Nothing has heard the answer yet. If the cell doesn't run any more: %oc_attach asks again.";

function make(tag, text = "", props = {}) {
  const node = Object.assign(document.createElement(tag), props);
  node.textContent = text;
  return node;
}

const LOOK = { "+": "added", "-": "removed", "@": "hunk" };

// Neighbours of a kind share an element: 200,000 elements took a browser 6 s.
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
  const told = spec.choices.some((choice) => choice.with_message) ? [label] : [];
  return { nodes: [...subject, ...changes, buttons, ...told, effects], update };
}

function item(spec, question, number) {
  const set = make("fieldset");
  const { header, question: asked } = question;
  set.append(make("legend", header && asked ? `${header}: ${asked}` : header || asked));
  if (question.note) set.append(make("small", question.note));
  for (const [n, option] of question.options.entries()) {
    const input = make("input", "", {
      type: question.multiple ? "checkbox" : "radio",
      name: `${spec.id}-${number}`,
      value: option.label,
      checked: option.chosen,
    });
    input.dataset.means = option.value;
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
  // The same as conditions spell it; where nothing is said, the default counts.
  const means = () => {
    const typed = own.value.trim();
    const said = [
      ...[...set.querySelectorAll("input:checked")].map((input) => input.dataset.means),
      ...(typed ? [own.type === "number" ? String(Number(typed)) : typed] : []),
    ];
    return said.length ? said : question.default;
  };
  // What the page itself can tell: the kernel says the rest, and nothing is sent before.
  const complaint = () => {
    if (own.validationMessage) return own.validationMessage;
    return question.required && !answers().length ? "an answer is needed" : "";
  };
  // One answer where one is asked for: typing takes the choice back, choosing empties the text.
  if (!question.multiple) {
    own.oninput = () => {
      for (const input of set.querySelectorAll("input:checked")) input.checked = false;
    };
    set.addEventListener("change", (event) => {
      if (event.target.type === "radio") own.value = "";
    });
  }
  return { set, answers, means, complaint, name: header || asked };
}

function questions(spec, send, say) {
  const form = make("form", "", { noValidate: true }); // what is wrong is said in the note
  const items = spec.items.map((question, number) => item(spec, question, number));
  // A question counts where others have, or have not, certain answers; one that doesn't has none.
  const counts = (at, above = []) => spec.items[at].when.every(([key, op, value]) => {
    const other = spec.items.findIndex((question) => question.key === key);
    const known = other >= 0 && other !== at && !above.includes(other);
    const said = known && counts(other, [...above, at]) ? items[other].means() : [];
    return said.includes(value) === (op === "eq");
  });
  const asked = () => items.filter((_, at) => counts(at));
  const update = () => {
    const shown = asked();
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
    const shown = asked();
    const answers = items.map((question) => (shown.includes(question) ? question.answers() : []));
    const wrong = shown.flatMap(({ complaint, name }) => (complaint() ? [`${name}: ${complaint()}`] : []));
    if (wrong.length) say(wrong.join("\n"));
    else if (spec.items.some(({ asks }) => asks) && !answers.flat().length) say(NOTHING);
    else send({ reply: "answer", answers });
  };
  const effects = make("ul", "", { className: "oc-ask-effects" });
  effects.append(effect);
  form.append(...items.map(({ set }) => set), buttons, effects);
  return { nodes: [form], update };
}

const controlsOf = (root) => [...root.querySelectorAll("button, input")];

// `begun` is what the views of one form share: which request a person looks at, since when, what
// was typed and chosen, and which control has the focus: -1 for the form itself, null for none.
function render({ model, el }, begun) {
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
  let sending = false;
  let decides = true; // its buttons do: not those that only go on
  let later, overdue;
  const say = (text) => { note.textContent = text; };
  const enable = () => {
    const unread = decides ? begun.since + TO_READ - performance.now() : 0;
    for (const control of controlsOf(root)) {
      control.disabled = sending || (unread > 0 && control.tagName === "BUTTON");
    }
    clearTimeout(later);
    if (unread > 0) later = setTimeout(enable, unread);
  };
  const send = (answer) => {
    sending = true;
    enable();
    say("Sending the answer.");
    overdue = setTimeout(() => say(UNHEARD), TO_HEAR);
    model.send({ kind: "answer", id: shown, ...answer });
  };
  const keep = () => {
    begun.said = controlsOf(root).map(({ value, checked }) => ({ value, checked }));
  };
  root.addEventListener("input", keep);
  root.addEventListener("change", keep);
  root.addEventListener("focusin", (event) => {
    begun.at = controlsOf(root).indexOf(event.target);
  });
  root.addEventListener("focusout", (event) => {
    // Nothing gets the focus when what has it is taken away.
    if (event.relatedTarget && !root.contains(event.relatedTarget)) begun.at = null;
  });
  // A new view is put into the page later, and only then can it have the focus.
  const drawn = new ResizeObserver(() => {
    drawn.disconnect();
    if (begun.at !== null && document.activeElement === document.body) {
      (controlsOf(root)[begun.at] ?? root).focus({ preventScroll: true });
    }
  });
  const build = (spec) => {
    title.id = `${spec.id}-title`;
    root.setAttribute("aria-labelledby", title.id);
    parts = spec.items ? questions(spec, send, say) : permission(spec, send);
    body.replaceChildren(...parts.nodes);
    if (begun.id === spec.id) {
      for (const [n, control] of controlsOf(root).entries()) Object.assign(control, begun.said[n]);
    } else {
      // Who answers with keys finds the next request at once, but none of its buttons.
      const at = begun.at === null ? null : -1;
      Object.assign(begun, { id: spec.id, since: performance.now(), said: [], at });
    }
  };
  const draw = () => {
    const spec = model.get("spec");
    const other = spec?.id !== shown;
    shown = spec?.id;
    decides = spec?.decides ?? true;
    sending = false;
    clearTimeout(overdue);
    root.hidden = !shown;
    title.textContent = spec?.title ?? "";
    if (!shown) return;
    if (other) build(spec);
    parts.update(spec);
    enable();
    say(spec.note);
    if (begun.at !== null) drawn.observe(root);
  };
  root.hidden = true;
  model.on("change:spec", draw);
  draw();
  model.send({ kind: "ready" });
  return () => model.off("change:spec", draw);
}

export default () => {
  const begun = { id: null, since: 0, said: [], at: null };
  return { render: (view) => render(view, begun) };
};

// The console's only script. Pages work without it; it adds live parts, dialogs, the search key and live tails.
//
//   data-live            on an element with an id: replaced by the same element of a fresh copy of the page;
//                        data-live="reload" loads the whole page again once the element is gone from it
//   data-events="URL"    on <body>: server-sent events that say when to refresh the live elements
//   data-dialog          on a link or a form: its answer opens in the dialog instead of a new page
//   data-tail="URL"      on a list: one copy of its <template> for each event, filled as text
//   data-field="a.b"     in such a template: the member of the event; with data-time, RFC 3339 as the pages write times
//   data-choose-all      on a checkbox: checks every box of its form
//   data-menu, data-close, data-copy="#id"
"use strict";

(() => {
  const FRAGMENT = { "X-Fragment": "1" };
  const REFRESH_MIN_MS = 2000;
  const TAIL_MAX = 200;
  const dialog = document.getElementById("dialog");
  const parser = new DOMParser();

  const parse = (text) => parser.parseFromString(text, "text/html");

  // -- live parts ---------------------------------------------------------------------------------------------------

  let refreshed = 0, refreshing = null, changing = false, postponed = null;

  async function refresh() {
    const now = Date.now();
    if (changing || document.hidden || !document.querySelector("[data-live]")) return;
    if (refreshing || now - refreshed < REFRESH_MIN_MS) {  // not dropped: no other event may follow
      postponed ??= setTimeout(() => { postponed = null; refresh(); }, REFRESH_MIN_MS);
      return;
    }
    refreshing = new AbortController();
    refreshed = now;
    try {
      const answer = await fetch(location.href, { headers: { "X-Live": "1" }, redirect: "manual", signal: refreshing.signal });
      if (answer.type === "opaqueredirect") return location.reload();  // the session has ended
      const fresh = parse(await answer.text());
      swapLive(fresh);
      setProblem(answer.ok || document.getElementById("problem") ? null : fresh.querySelector("#problem p")?.textContent ?? "");
    } catch (error) {
      if (error.name !== "AbortError") setProblem("");
    } finally {
      refreshing = null;
    }
  }

  // While a change is made, and until the next page is there: what this page shows may just be deleted.
  function pauseRefreshing() {
    changing = true;
    refreshing?.abort();
  }

  function swapLive(fresh) {
    for (const old of document.querySelectorAll("[data-live]")) {
      const next = fresh.getElementById(old.id);
      if (!next && old.dataset.live === "reload") return location.reload();
      if (!next || old.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) continue;
      const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      const marked = [...old.querySelectorAll("input:checked")].map((box) => box.value);
      if (old.isEqualNode(next)) continue;
      old.replaceWith(document.importNode(next, true));
      const current = document.getElementById(old.id);
      if (focused) current.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
      for (const box of current.querySelectorAll("input[type=checkbox]")) box.checked = marked.includes(box.value);
    }
  }

  function setProblem(detail) {  // null: none; otherwise what the console said, or nothing if it did not answer
    const notice = document.getElementById("offline");
    notice.hidden = detail === null;
    if (detail) notice.querySelector("p + p").textContent = detail;
  }

  function listen() {
    const address = document.body.dataset.events;
    if (!address) return;
    let source = null;
    const open = () => {
      if (source || document.hidden) return;
      source = new EventSource(address);
      source.onopen = refresh;
      source.addEventListener("overview", refresh);
      source.addEventListener("unreachable", refresh);
      source.onerror = () => {
        if (source.readyState === EventSource.CLOSED) { source = null; setTimeout(open, 5000); }
        refresh();
      };
    };
    const close = () => { source?.close(); source = null; };
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : (open(), refresh())));
    addEventListener("pagehide", close);
    addEventListener("pageshow", () => { changing = false; });
    open();
  }

  // -- dialogs ------------------------------------------------------------------------------------------------------

  async function openInDialog(address, options = {}) {
    const answer = await fetch(address, { ...options, headers: FRAGMENT });
    if (answer.redirected || answer.headers.get("X-Location")) {
      pauseRefreshing();
      location.assign(answer.headers.get("X-Location") || answer.url);
      return;
    }
    changing = false;
    const sheet = parse(await answer.text()).querySelector(".sheet");
    if (!sheet) { location.assign(address); return; }
    dialog.replaceChildren(document.importNode(sheet, true));
    dialog.setAttribute("aria-labelledby", "sheet-title");
    if (!dialog.open) dialog.showModal();
    dialog.querySelector("[autofocus], input:not([type=hidden]), select, textarea, .button")?.focus();
  }

  function submitted(form, submitter) {
    const data = new URLSearchParams();
    for (const [name, value] of new FormData(form, submitter)) if (typeof value === "string") data.append(name, value);
    return data;
  }

  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-dialog][href], [data-close], [data-menu], [data-copy]");
    if (!target) return;
    if (target.matches("[data-menu]")) {
      const open = document.body.classList.toggle("menu-open");
      target.setAttribute("aria-expanded", String(open));
    } else if (target.matches("[data-copy]")) {
      navigator.clipboard?.writeText(document.querySelector(target.dataset.copy)?.textContent ?? "");
    } else if (target.matches("[data-close]")) {
      if (dialog?.open) { event.preventDefault(); dialog.close(); }
    } else if (!event.ctrlKey && !event.metaKey && !event.shiftKey && dialog) {
      event.preventDefault();
      openInDialog(target.href);
    }
  });

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method === "post") pauseRefreshing();
    if (!dialog || !(form.matches("[data-dialog]") || dialog.contains(form))) return;
    event.preventDefault();
    const data = submitted(form, event.submitter);
    const address = event.submitter?.getAttribute("formaction") || form.getAttribute("action") || location.href;
    for (const button of form.querySelectorAll("button")) button.disabled = true;
    const sent = form.method === "post"
      ? openInDialog(address, { method: "POST", body: data })
      : openInDialog(`${address}?${data}`);
    sent.catch(() => { changing = false; setProblem(""); }).finally(() => { for (const button of form.querySelectorAll("button")) button.disabled = false; });
  });

  dialog?.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

  // -- live tails: foreign text only ever enters through textContent ------------------------------------------------

  function follow(list) {
    const template = list.querySelector("template");
    const source = new EventSource(list.dataset.tail);
    const state = document.getElementById(list.dataset.state);
    const show = (name) => { if (state) for (const part of state.children) part.hidden = part.dataset.is !== name; };
    const add = (event) => {
      const row = document.importNode(template.content, true).firstElementChild;
      const values = JSON.parse(event.data);
      for (const field of row.querySelectorAll("[data-field]")) {
        const value = field.dataset.field.split(".").reduce((part, name) => part?.[name], values);
        field.textContent = "time" in field.dataset ? (value ?? "").replace("T", " ").replace("Z", "") : value ?? "";
        field.hidden = value === undefined || value === null || value === "";
        if (field.dataset.href && typeof value === "string") field.setAttribute("href", field.dataset.href + encodeURIComponent(value));
      }
      list.querySelector("[data-placeholder]")?.remove();
      list.prepend(row);
      while (list.childElementCount > TAIL_MAX) list.lastElementChild.remove();
    };
    source.onopen = () => show("open");
    source.onerror = () => show("lost");
    source.onmessage = add;
    addEventListener("pagehide", () => source.close());
    list.closest(".card")?.querySelector("[data-tail-stop]")?.addEventListener("click", () => { source.close(); show("stopped"); });
  }

  // -- keys and small things ----------------------------------------------------------------------------------------

  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.target.closest?.("input, select, textarea, [contenteditable]")) {
      event.preventDefault();
      (document.querySelector("[data-search]") || document.getElementById("search"))?.focus();
    } else if (event.key === "Escape" && document.body.classList.contains("menu-open")) {
      document.body.classList.remove("menu-open");
      document.querySelector("[data-menu]")?.setAttribute("aria-expanded", "false");
    }
  });

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-choose-all]")) {
      for (const box of event.target.form.querySelectorAll("input[type=checkbox][name]")) box.checked = event.target.checked;
    } else if (event.target.matches("select[data-submit]")) {
      event.target.form.requestSubmit();
    }
  });

  for (const toast of document.querySelectorAll(".toasts .good")) setTimeout(() => toast.remove(), 6000);
  for (const list of document.querySelectorAll("[data-tail]")) follow(list);
  listen();
})();

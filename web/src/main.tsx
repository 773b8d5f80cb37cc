// The page: navigation, the current view, the dialog for the key, and notices.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { apiKey, keyWanted, setKey } from "./api";
import "./style.css";
import { type Theme, type View, VIEWS, cluster, down, isDark, keepPolling, notices, offline, setTheme, theme, view } from "./state";
import { seconds } from "./format";
import { Button, Dialog, Field, Icon, type IconName } from "./ui/parts";
import { ChatView } from "./views/chat";
import { Keys } from "./views/keys";
import { Machines } from "./views/machines";
import { Models } from "./views/models";
import { Overview } from "./views/overview";
import { Requests } from "./views/requests";

const PAGES: Record<View, { title: string; icon: IconName; body: () => preact.JSX.Element }> = {
  overview: { title: "Overview", icon: "overview", body: () => <Overview /> },
  chat: { title: "Chat", icon: "chat", body: () => <ChatView /> },
  models: { title: "Models", icon: "models", body: () => <Models /> },
  requests: { title: "Requests", icon: "requests", body: () => <Requests /> },
  machines: { title: "Machines", icon: "machines", body: () => <Machines /> },
  keys: { title: "Keys", icon: "keys", body: () => <Keys /> },
};

const THEMES: Theme[] = ["auto", "light", "dark"];

function App() {
  const heading = useRef<HTMLHeadingElement>(null);
  const page = PAGES[view.value];
  const isFirst = useRef(true);
  useEffect(() => {
    document.title = `${page.title} · Jackalope`;
    if (!isFirst.current) heading.current?.focus();
    isFirst.current = false;
  }, [view.value]);
  useEffect(() => {
    document.documentElement.dataset["theme"] = isDark.value ? "dark" : "light";
  }, [isDark.value]);
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        heading.current?.focus();
      }}>
        Skip to the content
      </a>
      <Side />
      <main id="main" class={`page view-${view.value}`}>
        <header class="page-head">
          <h1 ref={heading} tabIndex={-1}>
            {page.title}
          </h1>
          <State />
        </header>
        {page.body()}
      </main>
      <AskKey />
      <Notices />
    </div>
  );
}

function Side() {
  const next = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? "auto";
  return (
    <div class="side">
      <a class="brand" href="#/overview">
        <img src="/assets/icon.svg" alt="" width="30" height="30" />
        <span>Jackalope</span>
      </a>
      <nav aria-label="Views">
        {VIEWS.map((name) => (
          <a class="nav-link" href={`#/${name}`} aria-current={view.value === name ? "page" : undefined}>
            <Icon name={PAGES[name].icon} />
            <span>{PAGES[name].title}</span>
          </a>
        ))}
      </nav>
      <div class="side-foot">
        <a class="nav-link" href="/docs/">
          API documentation
        </a>
        <div class="side-tools">
          <span class="muted small">{cluster.value === null ? "" : `version ${cluster.value.version}`}</span>
          {apiKey.value !== "" && <Button icon="keys" label="Forget the key" iconOnly onClick={() => setKey("")} />}
          <Button icon={theme.value} label={`Colours: ${theme.value}. Change to ${next}`} iconOnly onClick={() => setTheme(next)} />
        </div>
      </div>
    </div>
  );
}

/** The state of the server in a word. */
function State() {
  if (offline.value !== null) return <p class="state bad" role="status">not connected</p>;
  if (cluster.value === null) return <p class="state idle" role="status">connecting</p>;
  const lost = down.value;
  if (lost !== null) {
    const word = lost.state === "failed" ? "down" : "recovering";
    return <p class="state warn" role="status">{word}, {seconds(Math.round(lost.down?.seconds ?? 0))}</p>;
  }
  const model = cluster.value.models.find((it) => it.is_default);
  const tone = model?.state === "ready" ? "good" : model?.state === "failed" ? "bad" : "idle";
  return <p class={`state ${tone}`} role="status">{model?.state ?? "unknown"}</p>;
}

function AskKey() {
  const [typed, setTyped] = useState("");
  if (keyWanted.value === null) return null;
  return (
    <Dialog title="Key">
      <form
        class="dialog-body"
        onSubmit={(event) => {
          event.preventDefault();
          if (typed.trim() === "") return;
          setKey(typed);
          setTyped("");
        }}
      >
        <p>{keyWanted.value}</p>
        <Field label="API key" hint="Kept until this tab is closed. An administrator's key also shows requests and keys.">
          {(id) => <input id={id} type="password" autocomplete="off" spellcheck={false} value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />}
        </Field>
        <div class="dialog-actions">
          <Button label="Continue" kind="main" submit disabled={typed.trim() === ""} />
        </div>
      </form>
    </Dialog>
  );
}

function Notices() {
  return (
    <div class="notices" role="status">
      {notices.value.map((it) => (
        <p class={`notice ${it.kind}`} key={it.id}>
          {it.text}
        </p>
      ))}
    </div>
  );
}

const target = document.getElementById("app");
if (target === null) throw new Error("the page has no place for the application");
render(<App />, target);
void keepPolling();

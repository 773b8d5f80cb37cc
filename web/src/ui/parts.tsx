// Small parts that views are made of.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { withHint } from "../format";

const ICONS = {
  overview: "M3 3h7v9H3zM14 3h7v5h-7zM14 12h7v9h-7zM3 16h7v5H3z",
  chat: "M21 12a8 8 0 0 1-8 8H4l2-3a8 8 0 1 1 15-5z",
  models: "M12 3l8 4.500v9L12 21l-8-4.500v-9zM4 7.500l8 4.500 8-4.500M12 12v9",
  requests: "M4 6h10M8 12h12M4 18h7",
  machines: "M4 4h16v7H4zM4 13h16v7H4zM7.500 7.500h.01M7.500 16.500h.01M12 7.500h5M12 16.500h5",
  keys: "M15 9a4 4 0 1 1-8 0 4 4 0 0 1 8 0zM13.800 11.800 20 18v3h-3l-1.500-1.500M17 18l-2 2",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M5.500 11.500 12 5l6.500 6.500",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  edit: "M4 20h4L19 9l-4-4L4 16zM13.500 6.500l4 4",
  again: "M20 11a8 8 0 1 0-2.300 6.300M20 5v6h-6",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
  close: "M6 6l12 12M18 6 6 18",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.500v5M9 14.500v5",
  download: "M12 4v12M6.500 11 12 16.500 17.500 11M4 20h16",
  chevron: "M9 6l6 6-6 6",
  light: "M12 8a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM12 2.500v2M12 19.500v2M2.500 12h2M19.500 12h2M5.300 5.300l1.400 1.400M17.300 17.300l1.400 1.400M18.700 5.300l-1.400 1.400M6.700 17.300l-1.400 1.400",
  dark: "M20 14.500A8.500 8.500 0 0 1 9.500 4a8.500 8.500 0 1 0 10.500 10.500z",
  auto: "M12 3.500a8.500 8.500 0 1 1 0 17 8.500 8.500 0 0 1 0-17zM12 3.500v17M12 7l6-.500M12 12h8.500M12 17l6 .500",
  list: "M4 6h16M4 12h16M4 18h16",
  check: "M5 12.500 10 17.500 19.500 7",
  warn: "M12 4 2.500 20h19zM12 10v4.500M12 17.300v.200",
} as const;

export type IconName = keyof typeof ICONS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={ICONS[name]} />
    </svg>
  );
}

interface ButtonProps {
  icon?: IconName;
  label: string;
  /** Only the icon is shown; the label is for screen readers and as a tooltip. */
  iconOnly?: boolean;
  kind?: "main" | "plain" | "danger";
  disabled?: boolean;
  pressed?: boolean;
  expanded?: boolean;
  submit?: boolean;
  onClick?: () => void;
}

export function Button(props: ButtonProps) {
  const { icon, label, iconOnly = false, kind = "plain" } = props;
  return (
    <button
      type={props.submit === true ? "submit" : "button"}
      class={`button ${kind} ${iconOnly ? "icon-only" : ""}`}
      disabled={props.disabled}
      aria-label={iconOnly ? label : undefined}
      title={iconOnly ? label : undefined}
      aria-pressed={props.pressed}
      aria-expanded={props.expanded}
      onClick={props.onClick}
    >
      {icon !== undefined && <Icon name={icon} />}
      {!iconOnly && <span>{label}</span>}
    </button>
  );
}

interface CardProps {
  title: string;
  aside?: ComponentChildren;
  class?: string;
  children: ComponentChildren;
}

export function Card({ title, aside, class: name, children }: CardProps) {
  const id = useId();
  return (
    <section class={`card ${name ?? ""}`} aria-labelledby={id}>
      <header class="card-head">
        <h2 id={id}>{title}</h2>
        {aside !== undefined && <div class="card-aside">{aside}</div>}
      </header>
      {children}
    </section>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export type Tone = "good" | "busy" | "bad" | "warn" | "idle";

export function Badge({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return <span class={`badge ${tone}`}>{children}</span>;
}

/** The tone of the state of a model. */
export function toneOf(state: string): Tone {
  switch (state) {
    case "ready":
      return "good";
    case "loading":
    case "starting":
    case "unloading":
      return "busy";
    case "recovering":
      return "warn";
    case "failed":
    case "stopping":
      return "bad";
    default:
      return "idle";
  }
}

interface BarPart {
  share: number;
  /** Class of the colour. */
  tone: string;
}

/** A bar of several parts, described in words by `label`. */
export function Bar({ parts, label }: { parts: BarPart[]; label: string }) {
  return (
    <div class="bar" role="img" aria-label={label}>
      {parts.map(({ share, tone }) => (
        <div class={`bar-part ${tone}`} style={{ width: `${Math.max(0, Math.min(1, share)) * 100}%` }} />
      ))}
    </div>
  );
}

export function Progress({ done, total, label }: { done: number; total: number; label: string }) {
  const share = 0 < total ? done / total : 0;
  return (
    <div
      class="bar progress"
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(share * 100)}
    >
      <div class="bar-part accent" style={{ width: `${share * 100}%` }} />
    </div>
  );
}

/** A message of the server: what happened, and the remedy below. */
export function Problem({ message, action }: { message: string; action?: ComponentChildren }) {
  const { text, hints } = withHint(message);
  return (
    <div class="problem" role="alert">
      <Icon name="warn" />
      <div>
        <p class="pre">{text}</p>
        {hints.map((hint) => (
          <p class="hint">{hint}</p>
        ))}
        {action}
      </div>
    </div>
  );
}

interface DialogProps {
  title: string;
  onClose?: () => void;
  children: ComponentChildren;
}

/** A modal dialog, which Escape closes if it can be closed. */
export function Dialog({ title, onClose, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog
      ref={dialog}
      aria-labelledby={id}
      onCancel={(event: Event) => {
        event.preventDefault();
        onClose?.();
      }}
    >
      <header class="card-head">
        <h2 id={id}>{title}</h2>
        {onClose !== undefined && <Button icon="close" label="Close" iconOnly onClick={onClose} />}
      </header>
      {children}
    </dialog>
  );
}

interface ConfirmProps {
  title: string;
  children: ComponentChildren;
  action: string;
  onConfirm: () => void;
  onClose: () => void;
}

export function Confirm({ title, children, action, onConfirm, onClose }: ConfirmProps) {
  return (
    <Dialog title={title} onClose={onClose}>
      <div class="dialog-body">{children}</div>
      <div class="dialog-actions">
        <Button label="Cancel" onClick={onClose} />
        <Button label={action} kind="danger" onClick={onConfirm} />
      </div>
    </Dialog>
  );
}

interface FieldProps {
  label: string;
  hint?: string;
  children: (id: string) => JSX.Element;
}

export function Field({ label, hint, children }: FieldProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children(id)}
      {hint !== undefined && <p class="field-hint">{hint}</p>}
    </div>
  );
}

/** Copies text, and says so for a moment. */
export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      copyBySelection(text);
    }
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return <Button icon={copied ? "check" : "copy"} label={copied ? "Copied" : label} iconOnly onClick={copy} />;
}

/** Browsers have no clipboard on pages without HTTPS. */
function copyBySelection(text: string) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** Returns the width of an element, and again whenever it changes. */
export function useWidth() {
  const ref = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = ref.current;
    if (element === null) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    setWidth(element.clientWidth);
    return () => observer.disconnect();
  }, []);
  return { ref, width };
}

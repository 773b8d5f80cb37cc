// Keys: who may use the server, how much, and as what.

import { useEffect, useState } from "preact/hooks";
import { Refusal, apiKey, call, message } from "../api";
import { count, plural } from "../format";
import { notify } from "../state";
import { Badge, Button, Card, Confirm, CopyButton, Dialog, Empty, Field, Problem } from "../ui/parts";

interface Key {
  name: string;
  admin: boolean;
  priority: number;
  cache_group: string | null;
  requests_per_minute: number | null;
  tokens_per_minute: number | null;
  concurrent_requests: number | null;
  editable: boolean;
  requests: number;
  prompt_tokens: number;
  completion_tokens: number;
  limited: number;
}

interface KeyList {
  required: boolean;
  editable: boolean;
  keys: Key[];
}

export function Keys() {
  const [list, setList] = useState<KeyList | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [edited, setEdited] = useState<Key | "new" | null>(null);
  const [doomed, setDoomed] = useState<Key | null>(null);
  const [created, setCreated] = useState<{ name: string; key: string } | null>(null);
  const reload = async () => {
    try {
      setList(await call<KeyList>("GET", "/v1/keys"));
      setProblem(null);
    } catch (error) {
      setProblem(error instanceof Refusal && error.status === 401 ? null : message(error));
    }
  };
  useEffect(() => {
    void reload();
  }, [apiKey.value]);
  const revoke = async (key: Key) => {
    try {
      setList(await call<KeyList>("DELETE", `/v1/keys/${encodeURIComponent(key.name)}`));
      notify("good", `The key ${key.name} is revoked.`);
    } catch (error) {
      notify("bad", message(error));
    }
    setDoomed(null);
  };
  if (problem !== null) return <Problem message={problem} />;
  if (list === null) return <Empty>Loading…</Empty>;
  return (
    <div class="stack">
      <Card
        title="Keys"
        aside={list.editable ? <Button icon="plus" label="New key" kind="main" onClick={() => setEdited("new")} /> : <span class="muted">{plural(list.keys.length, "key")}</span>}
      >
        {!list.required && <Empty>This server requires no key: everyone who reaches it may use it.</Empty>}
        {!list.editable && (
          <p class="muted small">
            Keys are created and revoked here if the server is started with <code>--api-keys FILE</code>.
          </p>
        )}
        <ul class="rows">
          {list.keys.map((key) => (
            <KeyRow key={key.name} it={key} onEdit={() => setEdited(key)} onRevoke={() => setDoomed(key)} />
          ))}
        </ul>
      </Card>
      {edited !== null && (
        <Edit
          it={edited === "new" ? null : edited}
          onClose={() => setEdited(null)}
          onDone={(next) => {
            setEdited(null);
            setCreated(next);
            void reload();
          }}
        />
      )}
      {created !== null && (
        <Dialog title={`Key for ${created.name}`} onClose={() => setCreated(null)}>
          <div class="dialog-body">
            <p>Copy the key now. Only its hash is stored, so it cannot be shown again.</p>
            <div class="type-this">
              <code data-testid="new-key">{created.key}</code>
              <CopyButton text={created.key} />
            </div>
          </div>
        </Dialog>
      )}
      {doomed !== null && (
        <Confirm title="Revoke the key?" action="Revoke" onClose={() => setDoomed(null)} onConfirm={() => void revoke(doomed)}>
          <p>
            Requests with the key <strong>{doomed.name}</strong> are refused from now on.
          </p>
        </Confirm>
      )}
    </div>
  );
}

function limits(it: Key): string {
  const parts = [
    it.requests_per_minute === null ? null : `${count(it.requests_per_minute)} requests/min`,
    it.tokens_per_minute === null ? null : `${count(it.tokens_per_minute)} tokens/min`,
    it.concurrent_requests === null ? null : `${count(it.concurrent_requests)} at once`,
    it.priority === 0 ? null : `priority ${it.priority}`,
    it.cache_group === null ? null : `cache group ${it.cache_group}`,
  ];
  const found = parts.filter((part) => part !== null);
  return found.length === 0 ? "no limits" : found.join(" · ");
}

function KeyRow({ it, onEdit, onRevoke }: { it: Key; onEdit: () => void; onRevoke: () => void }) {
  return (
    <li class="row wrap">
      <div class="row-main">
        <p class="model-name">
          <strong>{it.name}</strong>
          {!it.editable && <span class="tag">set at the start</span>}
        </p>
        <p class="muted small">
          {limits(it)} · {plural(it.requests, "request")}, {count(it.prompt_tokens + it.completion_tokens)} tokens
          {0 < it.limited && `, ${plural(it.limited, "refusal")}`}
        </p>
      </div>
      <Badge tone={it.admin ? "busy" : "idle"}>{it.admin ? "administrator" : "user"}</Badge>
      {it.editable && (
        <div class="row-actions">
          <Button label="Change" onClick={onEdit} />
          <Button label="Revoke" kind="danger" onClick={onRevoke} />
        </div>
      )}
    </li>
  );
}

const LIMITS: { name: "requests_per_minute" | "tokens_per_minute" | "concurrent_requests"; label: string }[] = [
  { name: "requests_per_minute", label: "Requests per minute" },
  { name: "tokens_per_minute", label: "Tokens per minute" },
  { name: "concurrent_requests", label: "Requests at once" },
];

interface EditProps {
  /** The key to change; none for a new one. */
  it: Key | null;
  onClose: () => void;
  onDone: (created: { name: string; key: string } | null) => void;
}

function Edit({ it, onClose, onDone }: EditProps) {
  const text = (value: number | null | undefined) => (value === null || value === undefined ? "" : String(value));
  const [name, setName] = useState(it?.name ?? "");
  const [numbers, setNumbers] = useState<Record<string, string>>(Object.fromEntries(LIMITS.map((limit) => [limit.name, text(it?.[limit.name])])));
  const [priority, setPriority] = useState(text(it?.priority ?? 0));
  const [admin, setAdmin] = useState(it?.admin ?? false);
  const [problem, setProblem] = useState<string | null>(null);
  const submit = async () => {
    const set = LIMITS.map(({ name }) => [name, numbers[name]?.trim() ? Number(numbers[name]) : undefined] as const);
    const settings = { ...Object.fromEntries(set.filter(([, value]) => value !== undefined)), priority: Number(priority) || 0, admin, cache_group: it?.cache_group ?? undefined };
    try {
      if (it === null) onDone(await call<{ name: string; key: string }>("POST", "/v1/keys", { name: name.trim(), ...settings }));
      else {
        await call("POST", `/v1/keys/${encodeURIComponent(it.name)}`, settings);
        onDone(null);
      }
    } catch (error) {
      setProblem(message(error));
    }
  };
  return (
    <Dialog title={it === null ? "New key" : `Key ${it.name}`} onClose={onClose}>
      <form
        class="dialog-body"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        {it === null && (
          <Field label="Name" hint="Letters, digits and any of . _ - @. Appears in records and metrics.">
            {(id) => <input id={id} autocomplete="off" spellcheck={false} value={name} onInput={(event) => setName(event.currentTarget.value)} />}
          </Field>
        )}
        <div class="field-row">
          {LIMITS.map((limit) => (
            <Field label={limit.label}>
              {(id) => (
                <input
                  id={id}
                  type="number"
                  min={1}
                  step={1}
                  placeholder="no limit"
                  value={numbers[limit.name]}
                  onInput={(event) => setNumbers({ ...numbers, [limit.name]: event.currentTarget.value })}
                />
              )}
            </Field>
          ))}
          <Field label="Priority">{(id) => <input id={id} type="number" step={1} value={priority} onInput={(event) => setPriority(event.currentTarget.value)} />}</Field>
        </div>
        <p class="field-hint">Lower priorities are scheduled earlier.</p>
        <label class="check">
          <input type="checkbox" checked={admin} onChange={(event) => setAdmin(event.currentTarget.checked)} />
          Administrator: sees all requests, loads models, changes keys
        </label>
        {problem !== null && <Problem message={problem} />}
        <div class="dialog-actions">
          <Button label="Cancel" onClick={onClose} />
          <Button label={it === null ? "Create" : "Save"} kind="main" submit disabled={it === null && name.trim() === ""} />
        </div>
      </form>
    </Dialog>
  );
}

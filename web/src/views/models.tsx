// Models: which are loaded and where, whether they fit, downloads, and copies to other machines.

import { useEffect, useState } from "preact/hooks";
import { call, callSlowly, message } from "../api";
import { bytes, percent, plural, seconds, shortName } from "../format";
import { type Model, cluster, notify, poll } from "../state";
import { Badge, Bar, Button, Card, Confirm, Dialog, Empty, Field, Problem, Progress, toneOf } from "../ui/parts";
import { type Job, JobRow, useJobs } from "../ui/jobs";
import { Copies, CopyDialog } from "./copies";
import { describe } from "./overview";

interface Fit {
  model: string;
  fits: boolean;
  machines: { machine: string; needed_bytes: number; budget_bytes: number | null; taken_bytes: number }[];
}

export function Models() {
  const models = cluster.value?.models ?? [];
  return (
    <div class="stack">
      <Downloads />
      <Copies />
      <Card title="Served models" aside={<span class="muted">{plural(models.length, "model")}</span>}>
        <ul class="rows">
          {models.map((model) => (
            <ModelRow key={model.id} model={model} />
          ))}
        </ul>
      </Card>
    </div>
  );
}

function machinesOf(model: Model): string[] {
  const machines = cluster.value?.machines ?? [];
  return machines.filter((it) => it.ranks.some((rank) => rank.model === model.id)).map((it) => it.name);
}

function ModelRow({ model }: { model: Model }) {
  const [dialog, setDialog] = useState<"none" | "delete" | "fit" | "copy">("none");
  const [isBusy, setBusy] = useState(false);
  const act = async (what: string, path: string, body: unknown) => {
    setBusy(true);
    try {
      await callSlowly("POST", path, body, AbortSignal.timeout(120_000));
      notify("good", `${shortName(model.id)}: ${what}`);
      await poll();
    } catch (error) {
      notify("bad", message(error));
    } finally {
      setBusy(false);
    }
  };
  const isUp = !["unloaded", "unloading"].includes(model.state) && !(model.state === "failed" && model.num_ranks === 0);
  const on = machinesOf(model);
  const notes = [
    describe(model),
    0 < on.length ? `on ${on.join(", ")}` : null,
    model.load_s === null ? null : `loaded in ${seconds(model.load_s)}`,
    model.is_pinned ? "pinned" : null,
    model.expires_in_s === null ? null : `unloads when idle for ${seconds(model.expires_in_s)}`,
    0 < model.open_requests ? plural(model.open_requests, "open request") : null,
  ];
  return (
    <li class="row wrap">
      <div class="row-main">
        <p class="model-name">
          <strong>{model.id}</strong>
          {model.is_default && <span class="tag">default</span>}
          {model.aliases.map((alias) => (
            <span class="tag">{alias}</span>
          ))}
        </p>
        <p class="muted small">{notes.filter((it) => it !== null && it !== "").join(" · ")}</p>
        {model.loaded_bytes !== null && (
          <div class="loading-bar">
            <Progress done={model.loaded_bytes.done} total={model.loaded_bytes.total} label={`Loading ${model.id}`} />
            <p class="tile-note">
              {bytes(model.loaded_bytes.done)} of {bytes(model.loaded_bytes.total)}
            </p>
          </div>
        )}
        {model.failure !== null && <Problem message={model.failure} />}
      </div>
      <Badge tone={toneOf(model.state)}>{model.state}</Badge>
      <div class="row-actions">
        <Button label="Does it fit?" onClick={() => setDialog("fit")} />
        <Button icon="copy" label={`Copy ${model.id} to other machines`} iconOnly onClick={() => setDialog("copy")} />
        {isUp ? (
          <Button label="Unload" disabled={isBusy} onClick={() => void act("unloaded", "/model/unload", { model: model.id })} />
        ) : (
          <Button label="Load" kind="main" disabled={isBusy} onClick={() => void act("loading", "/model/load", { model: model.id, wait: false })} />
        )}
        <Button icon="trash" label={`Delete ${model.id}`} iconOnly onClick={() => setDialog("delete")} />
      </div>
      {dialog === "delete" && <Delete model={model} onClose={() => setDialog("none")} />}
      {dialog === "copy" && <CopyDialog model={model.id} onClose={() => setDialog("none")} />}
      {dialog === "fit" && <FitDialog model={model} onClose={() => setDialog("none")} />}
    </li>
  );
}

function Delete({ model, onClose }: { model: Model; onClose: () => void }) {
  const [problem, setProblem] = useState<string | null>(null);
  const remove = async () => {
    try {
      await deleteModel(model.id);
      notify("good", `${model.id} is deleted.`);
      onClose();
      await poll();
    } catch (error) {
      setProblem(message(error));
    }
  };
  return (
    <Confirm title="Delete the model?" action="Delete its files" onClose={onClose} onConfirm={() => void remove()}>
      <p>
        The files of <strong>{model.id}</strong>
        {model.details !== null && ` (${bytes(model.details.weights_bytes)})`} are deleted from this machine.
      </p>
      {problem !== null && <Problem message={problem} />}
    </Confirm>
  );
}

async function deleteModel(model: string) {
  await call("DELETE", "/api/delete", { model });
}

function FitDialog({ model, onClose }: { model: Model; onClose: () => void }) {
  const [fit, setFit] = useState<Fit | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    call<Fit>("GET", `/model/fit?model=${encodeURIComponent(model.id)}`)
      .then(setFit)
      .catch((error: unknown) => setProblem(message(error)));
  }, []);
  return (
    <Dialog title={`Memory of ${shortName(model.id)}`} onClose={onClose}>
      <div class="dialog-body">
        {problem !== null && <Problem message={problem} />}
        {fit === null && problem === null && <Empty>Computing…</Empty>}
        {fit !== null && (
          <>
            <Badge tone={fit.fits ? "good" : "bad"}>{fit.fits ? "It fits." : "It does not fit, even alone."}</Badge>
            {fit.machines.length === 0 && <p class="muted">A server of one model gives it all memory that is free, so nothing is planned.</p>}
            {fit.machines.map((it) => (
              <FitRow it={it} />
            ))}
            {fit.machines.some((it) => 0 < it.taken_bytes) && <p class="muted small">Idle models are unloaded, the least recently used first, if their memory is needed.</p>}
          </>
        )}
      </div>
    </Dialog>
  );
}

function FitRow({ it }: { it: Fit["machines"][number] }) {
  const total = Math.max(it.budget_bytes ?? 0, it.needed_bytes + it.taken_bytes, 1);
  const words = `needs ${bytes(it.needed_bytes)}${it.budget_bytes === null ? "" : ` of ${bytes(it.budget_bytes)}`}; other models take ${bytes(it.taken_bytes)}`;
  return (
    <div class="memory">
      <p class="memory-head">
        <span>{it.machine}</span>
        <span class="muted">{it.budget_bytes === null ? "" : percent(it.needed_bytes / it.budget_bytes)}</span>
      </p>
      <Bar
        parts={[
          { share: it.needed_bytes / total, tone: it.budget_bytes !== null && it.budget_bytes < it.needed_bytes ? "warn" : "accent" },
          { share: it.taken_bytes / total, tone: "third" },
        ]}
        label={`${it.machine}: ${words}`}
      />
      <p class="tile-note">{words}</p>
    </div>
  );
}

function Downloads() {
  const pulls = useJobs<Job>("pulls");
  const [name, setName] = useState("");
  const start = async (model: string) => {
    try {
      await call("POST", "/v1/pulls", { model });
      setName("");
    } catch (error) {
      notify("bad", message(error));
    }
  };
  return (
    <Card title="Download">
      <form
        class="pull-form"
        onSubmit={(event) => {
          event.preventDefault();
          if (name.trim() !== "") void start(name.trim());
        }}
      >
        <Field label="Model on the hub" hint="Files that are complete are not fetched again, so an interrupted download continues where it stopped.">
          {(id) => <input id={id} placeholder="ORG/NAME" autocomplete="off" spellcheck={false} value={name} onInput={(event) => setName(event.currentTarget.value)} />}
        </Field>
        <Button icon="download" label="Download" kind="main" submit disabled={name.trim() === ""} />
      </form>
      {0 < pulls.length && (
        <ul class="rows">
          {[...pulls].reverse().map((pull) => (
            <JobRow key={pull.id} list="pulls" job={pull} doing="Download of" onResume={() => void start(pull.model)} />
          ))}
        </ul>
      )}
    </Card>
  );
}

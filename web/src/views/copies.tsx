// Copies of models to the other machines of the cluster: who lacks a model, and the progress of each copy.

import { useEffect, useState } from "preact/hooks";
import { call, callSlowly, message } from "../api";
import { bytes, percent, shortName } from "../format";
import { notify } from "../state";
import { Badge, Button, Card, Dialog, Empty, Problem, Progress, type Tone } from "../ui/parts";
import { JOB_TONES, type Job, JobRow, type JobState, useJobs } from "../ui/jobs";

/** Longest time that the machines may take to answer what they hold, in milliseconds. */
const HOLDINGS_MS = 60_000;

interface Copy extends Job {
  model_bytes: number;
  machines: { host: string; state: JobState; completed_bytes: number; path: string | null; error: string | null }[];
}

type HoldingState = "complete" | "partial" | "absent" | "different" | "unreachable";

interface Holding {
  host: string;
  state: HoldingState;
  completed_bytes: number;
  path: string | null;
  error: string | null;
}

interface Holdings {
  model: string;
  total_bytes: number;
  machines: Holding[];
}

const TONES: Record<HoldingState, Tone> = { complete: "good", partial: "warn", absent: "idle", different: "bad", unreachable: "bad" };

/** Starts or resumes a copy; returns whether it was accepted. */
async function start(model: string, hosts: string[]): Promise<boolean> {
  try {
    await call("POST", "/v1/copies", { model, hosts });
    return true;
  } catch (error) {
    notify("bad", message(error));
    return false;
  }
}

/** The copies that were started, unless there are none. */
export function Copies() {
  const copies = useJobs<Copy>("copies");
  if (copies.length === 0) return null;
  return (
    <Card title="Copies to other machines">
      <ul class="rows">
        {[...copies].reverse().map((copy) => (
          <JobRow
            key={copy.id}
            list="copies"
            job={copy}
            doing="Copy of"
            onResume={() =>
              void start(
                copy.model,
                copy.machines.map((it) => it.host),
              )
            }
          >
            <ul class="parts" aria-label={`Machines that ${copy.model} is copied to`}>
              {copy.machines.map((machine) => (
                <CopyTarget key={machine.host} copy={copy} machine={machine} />
              ))}
            </ul>
          </JobRow>
        ))}
      </ul>
    </Card>
  );
}

function CopyTarget({ copy, machine }: { copy: Copy; machine: Copy["machines"][number] }) {
  const share = 0 < copy.model_bytes ? machine.completed_bytes / copy.model_bytes : 0;
  return (
    <li>
      <p class="part-head">
        <span class="ellipsis">{machine.host}</span>
        <span class="muted small">{machine.path ?? (0 < share ? `${bytes(machine.completed_bytes)}, ${percent(share)}` : "")}</span>
        <Badge tone={JOB_TONES[machine.state]}>{machine.state}</Badge>
      </p>
      {machine.error !== null && <Problem message={machine.error} />}
      {machine.state !== "done" && 0 < copy.model_bytes && (
        <Progress done={machine.completed_bytes} total={copy.model_bytes} label={`Copy of ${copy.model} to ${machine.host}`} />
      )}
    </li>
  );
}

/** The machines that lack a model or hold a part of it, and the copies that complete them. */
export function CopyDialog({ model, onClose }: { model: string; onClose: () => void }) {
  const [held, setHeld] = useState<Holdings | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    const abort = new AbortController();
    const either = AbortSignal.any([abort.signal, AbortSignal.timeout(HOLDINGS_MS)]);
    callSlowly<Holdings>("GET", `/v1/copies/machines?model=${encodeURIComponent(model)}`, undefined, either)
      .then(setHeld)
      .catch((error: unknown) => {
        if (!abort.signal.aborted) setProblem(message(error));
      });
    return () => abort.abort();
  }, []);
  const copy = async (hosts: string[]) => {
    if (await start(model, hosts)) {
      notify("good", `${shortName(model)} is being copied to ${hosts.join(", ")}.`);
      onClose();
    }
  };
  const lacking = (held?.machines ?? []).filter((it) => it.state === "absent" || it.state === "partial").map((it) => it.host);
  return (
    <Dialog title={`${shortName(model)} on other machines`} onClose={onClose}>
      <div class="dialog-body">
        {problem !== null && <Problem message={problem} />}
        {held === null && problem === null && <Empty>Asking the machines…</Empty>}
        {held !== null && (
          <>
            <ul class="rows">
              {held.machines.map((it) => (
                <HoldingRow key={it.host} it={it} total={held.total_bytes} onCopy={() => void copy([it.host])} />
              ))}
            </ul>
            <p class="muted small">Names and sizes of files are compared here. A copy verifies every hash, and continues with the bytes that are there.</p>
          </>
        )}
      </div>
      {1 < lacking.length && (
        <div class="dialog-actions">
          <Button icon="copy" label={`Copy to all ${lacking.length}`} kind="main" onClick={() => void copy(lacking)} />
        </div>
      )}
    </Dialog>
  );
}

function HoldingRow({ it, total, onCopy }: { it: Holding; total: number; onCopy: () => void }) {
  const words: Record<HoldingState, string> = {
    complete: `all of ${bytes(total)}${it.path === null ? "" : ` in ${it.path}`}`,
    partial: `${bytes(it.completed_bytes)} of ${bytes(total)}`,
    absent: `lacks it (${bytes(total)})`,
    different: "another model with this name",
    unreachable: "cannot be reached",
  };
  return (
    <li class="row wrap">
      <div class="row-main">
        <p>
          <strong>{it.host}</strong>
        </p>
        <p class="muted small">{words[it.state]}</p>
        {it.error !== null && <Problem message={it.error} />}
        {it.state === "partial" && <Progress done={it.completed_bytes} total={total} label={`Part of the model on ${it.host}`} />}
      </div>
      <Badge tone={TONES[it.state]}>{it.state}</Badge>
      {(it.state === "absent" || it.state === "partial") && (
        <div class="row-actions">
          <Button icon="copy" label={`${it.state === "partial" ? "Resume" : "Copy"} to ${it.host}`} onClick={onCopy} />
        </div>
      )}
    </li>
  );
}

// Jobs of the server that any page can follow: downloads and copies of models.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Refusal, apiKey, call, events, message } from "../api";
import { bytes, percent } from "../format";
import { notify } from "../state";
import { Badge, Button, Problem, Progress, type Tone } from "./parts";

/** Pause before the stream of a list is opened again, in milliseconds. */
const RETRY_MS = 2000;

/** The lists of jobs, by the names that they have in the API. */
export type JobList = "pulls" | "copies";

export type JobState = "running" | "done" | "failed" | "cancelled";

export interface Job {
  id: string;
  model: string;
  state: JobState;
  status: string;
  total_bytes: number;
  completed_bytes: number;
}

export const JOB_TONES: Record<JobState, Tone> = { running: "busy", done: "good", failed: "bad", cancelled: "idle" };

async function follow<T>(list: JobList, onJobs: (jobs: T[]) => void, abort: AbortSignal) {
  while (!abort.aborted) {
    try {
      for await (const event of events("GET", `/v1/${list}/events`, undefined, abort)) onJobs((event as Record<JobList, T[]>)[list]);
    } catch (error) {
      // The key may not read the list. Otherwise the connection is opened again.
      if (error instanceof Refusal && error.status === 403) return;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

/**
 * Follows a list of jobs as long as the view is shown. A page that nobody sees gives its connection back,
 * because browsers allow only a few to one server.
 */
export function useJobs<T extends Job>(list: JobList): T[] {
  const [jobs, setJobs] = useState<T[]>([]);
  const key = apiKey.value;
  useEffect(() => {
    let abort = new AbortController();
    const begin = () => {
      abort.abort();
      abort = new AbortController();
      if (!document.hidden) void follow<T>(list, setJobs, abort.signal);
    };
    begin();
    document.addEventListener("visibilitychange", begin);
    return () => {
      document.removeEventListener("visibilitychange", begin);
      abort.abort();
    };
  }, [list, key]);
  return jobs;
}

async function end(list: JobList, id: string) {
  try {
    await call("DELETE", `/v1/${list}/${encodeURIComponent(id)}`);
  } catch (error) {
    notify("bad", message(error));
  }
}

interface JobRowProps {
  list: JobList;
  job: Job;
  /** What is being done, in words: "Download of". */
  doing: string;
  onResume: () => void;
  children?: ComponentChildren;
}

/** A job with its progress, and what can be done about it. `children` are its parts. */
export function JobRow({ list, job, doing, onResume, children }: JobRowProps) {
  const isRunning = job.state === "running";
  const share = 0 < job.total_bytes ? job.completed_bytes / job.total_bytes : 0;
  return (
    <li class="row wrap">
      <div class="row-main">
        <p class="ellipsis">
          <strong>{job.model}</strong>
        </p>
        {job.state === "failed" ? (
          <Problem message={job.status} />
        ) : (
          <p class="muted small">
            {0 < job.total_bytes ? `${bytes(job.completed_bytes)} of ${bytes(job.total_bytes)}, ${percent(share)}` : ""}
            {isRunning || job.state === "done" ? ` ${job.status}` : ""}
          </p>
        )}
        {children ?? (job.state !== "done" && 0 < job.total_bytes && <Progress done={job.completed_bytes} total={job.total_bytes} label={`${doing} ${job.model}`} />)}
      </div>
      <Badge tone={JOB_TONES[job.state]}>{job.state}</Badge>
      <div class="row-actions">
        {(job.state === "failed" || job.state === "cancelled") && <Button label="Resume" kind="main" onClick={onResume} />}
        <Button label={isRunning ? "Cancel" : "Dismiss"} onClick={() => void end(list, job.id)} />
      </div>
    </li>
  );
}

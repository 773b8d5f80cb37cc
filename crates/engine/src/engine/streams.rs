//! The event streams of the open requests: sends each event to its listener and records its time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::command::{Departure, Gauges, Listener, OpenRequest};
use crate::metrics::Timeline;
use crate::{Event, Request, RequestEnd, RequestId, RequestStats};

/// All open requests.
pub(super) struct Streams {
    open: HashMap<RequestId, (Listener, Timeline)>,
    gauges: Arc<Gauges>,
    /// When the last request ended, or the first began after there were none.
    pace_since: Option<Instant>,
}

impl Streams {
    pub(super) fn new(gauges: Arc<Gauges>) -> Streams {
        Streams { open: HashMap::new(), gauges, pace_since: None }
    }

    pub(super) fn open(&mut self, id: RequestId, request: &Request, listener: Listener) {
        let now = Instant::now();
        if self.open.is_empty() {
            self.pace_since = Some(now);
        }
        self.open.insert(id, (listener, Timeline::new(id, request, now)));
    }

    /// Counts events before they are sent, so that a caller that receives one finds it in the
    /// status. Returns the number of requests that fail.
    pub(super) fn note(&mut self, events: &[(RequestId, Event)], stats: &mut RequestStats) -> u64 {
        let now = Instant::now();
        let mut num_failed = 0;
        for (id, event) in events {
            let Some((listener, timeline)) = self.open.get_mut(id) else { continue };
            if let Some(record) = timeline.note(event, now, stats) {
                num_failed += u64::from(record.end == RequestEnd::Failed);
                listener.keep(record);
            }
        }
        num_failed
    }

    /// Sends an event that was counted.
    pub(super) fn send(&mut self, id: RequestId, event: Event) {
        if event.is_last() {
            let Some((listener, _)) = self.open.remove(&id) else { return };
            // Before the event is sent, so that a caller that receives it finds the slot free.
            self.gauges.num_open.fetch_sub(1, Ordering::Relaxed);
            self.note_pace();
            listener.send(event);
        } else if let Some((listener, _)) = self.open.get(&id) {
            listener.send(event);
        }
    }

    /// Fails a request that cannot be completed. Returns false if it has ended already.
    pub(super) fn fail(&mut self, id: RequestId, event: Event, stats: &mut RequestStats) -> bool {
        let Some((listener, timeline)) = self.open.remove(&id) else { return false };
        self.gauges.num_open.fetch_sub(1, Ordering::Relaxed);
        listener.keep(timeline.end(RequestEnd::Failed, Instant::now(), stats));
        listener.send(event);
        true
    }

    /// Removes a request whose caller reads no more of it. Returns false if it has ended already.
    pub(super) fn leave(
        &mut self,
        id: RequestId,
        departure: Departure,
        stats: &mut RequestStats,
    ) -> bool {
        let Some((_, timeline)) = self.open.remove(&id) else { return false };
        self.gauges.num_open.fetch_sub(1, Ordering::Relaxed);
        let end = match departure {
            Departure::Complete => RequestEnd::Stop,
            Departure::Left => RequestEnd::Left,
        };
        timeline.end(end, Instant::now(), stats);
        true
    }

    /// Returns the ids of all open requests, oldest first.
    pub(super) fn ids(&self) -> Vec<RequestId> {
        let mut ids: Vec<RequestId> = self.open.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Describes all open requests, oldest first.
    pub(super) fn list(&self, is_running: impl Fn(RequestId) -> bool) -> Vec<OpenRequest> {
        let now = Instant::now();
        let describe = |id: RequestId| {
            let (_, timeline) = &self.open[&id];
            OpenRequest {
                id,
                tenant: timeline.tenant(),
                priority: timeline.priority(),
                is_running: is_running(id),
                age: timeline.age(now),
                usage: timeline.usage(),
            }
        };
        self.ids().into_iter().map(describe).collect()
    }

    /// Updates the moving average of the time between ends from which refused callers get the time to retry. Time
    /// without requests does not count.
    fn note_pace(&mut self) {
        let now = Instant::now();
        if let Some(before) = self.pace_since.replace(now) {
            let interval_us = u64::try_from((now - before).as_micros()).unwrap_or(u64::MAX);
            let average = self.gauges.finish_interval_us.load(Ordering::Relaxed);
            let average = if average == 0 { interval_us } else { (7 * average + interval_us) / 8 };
            self.gauges.finish_interval_us.store(average, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::time::Duration;

    use super::*;
    use crate::{RequestLimits, RequestOptions};

    #[test]
    fn the_pace_begins_with_the_first_request_after_there_were_none() {
        let limits = RequestLimits {
            context_tokens: 10,
            max_prompt_tokens: 8,
            vocab_size: 50,
            eos_tokens: Vec::new(),
        };
        let options = || RequestOptions { prompt: vec![1], ..RequestOptions::default() };
        let request = || Request::new(options(), &limits).unwrap();
        let mut streams = Streams::new(Arc::default());
        let open = |streams: &mut Streams, id: u64| {
            let (events, _) = tokio::sync::mpsc::channel(4);
            let listener = Listener { events, record: Arc::new(OnceLock::new()) };
            streams.open(RequestId(id), &request(), listener);
        };
        let earlier = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
        streams.pace_since = Some(earlier);
        open(&mut streams, 0);
        let first = streams.pace_since.unwrap();
        assert!(earlier < first, "time without requests does not count");
        std::thread::sleep(Duration::from_millis(1));
        open(&mut streams, 1);
        assert_eq!(streams.pace_since, Some(first), "another request runs");
    }
}

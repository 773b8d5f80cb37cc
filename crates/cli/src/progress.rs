//! Progress bars for people, on standard error and only on a terminal.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use jackalope_console::output;
use jackalope_deploy::{Cluster, Observer};
use jackalope_engine::Status;
use jackalope_protocol::counted;
use jackalope_store::progress::{ByteCount, Progress};

/// Progress of a transfer to this machine, or of reading data again.
pub(crate) struct Transfer(ProgressBar);

impl Transfer {
    pub(crate) fn new(doing: &str, num_bytes: u64) -> Transfer {
        let bar = ProgressBar::new(num_bytes);
        let style = ProgressStyle::with_template(
            "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
        );
        bar.set_style(style.expect("the template is well formed"));
        bar.set_message(doing.to_owned());
        Transfer(bar)
    }

    pub(crate) fn add(&self, num_bytes: u64) {
        self.0.inc(num_bytes);
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl ByteCount for Transfer {
    fn expect(&self, num_bytes: u64) {
        self.0.set_length(num_bytes);
    }

    fn add(&self, num_bytes: u64) {
        self.0.inc(num_bytes);
    }

    fn take_back(&self, num_bytes: u64) {
        self.0.dec(num_bytes);
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Shows progress as bars, and messages as lines on standard error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal;

impl Observer for Terminal {
    fn note(&self, text: &str) {
        output::note(text);
    }
}

impl Progress for Terminal {
    fn begin(&self, doing: &str, total_bytes: u64) -> Box<dyn ByteCount> {
        Box::new(Transfer::new(doing, total_bytes))
    }
}

/// Progress of uploads to several machines, with a bar for each.
pub(crate) struct Uploads(MultiProgress);

/// Progress of the upload to one machine.
pub(crate) struct Upload(ProgressBar);

impl Uploads {
    pub(crate) fn new() -> Uploads {
        Uploads(MultiProgress::new())
    }

    pub(crate) fn add(&self, host: &str) -> Upload {
        let bar = self.0.add(ProgressBar::new(0));
        let style = ProgressStyle::with_template(
            "{prefix} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {msg}",
        );
        bar.set_style(style.expect("the template is well formed"));
        bar.set_prefix(host.to_owned());
        Upload(bar)
    }
}

impl Upload {
    pub(crate) fn expect(&self, num_bytes: u64) {
        self.0.set_length(num_bytes);
    }

    pub(crate) fn add(&self, num_bytes: u64) {
        self.0.inc(num_bytes);
    }

    /// Subtracts bytes that must be sent again.
    pub(crate) fn take_back(&self, num_bytes: u64) {
        self.0.dec(num_bytes);
    }

    pub(crate) fn say(&self, doing: &str) {
        self.0.set_message(doing.to_owned());
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// Progress of the ranks until they are ready. A separate thread writes it to the terminal, so that a
/// paused terminal blocks nothing else.
pub(crate) struct Loading(SyncSender<LoadingShown>);

/// The part of a status that is shown.
#[derive(Clone, Copy)]
struct LoadingShown {
    done_bytes: u64,
    total_bytes: u64,
    num_loaded: usize,
    num_ranks: usize,
}

impl Loading {
    pub(crate) fn new() -> Loading {
        let (sender, shown) = sync_channel(1);
        // Without the thread nothing is shown.
        let _ = std::thread::Builder::new()
            .name("progress".to_owned())
            .spawn(move || draw_loading(&shown));
        Loading(sender)
    }

    pub(crate) fn show(&self, status: &Status) {
        let sum = |pick: fn((u64, u64)) -> u64| -> u64 {
            status.ranks.iter().filter_map(|rank| rank.loaded_bytes).map(pick).sum()
        };
        let shown = LoadingShown {
            done_bytes: sum(|it| it.0),
            total_bytes: sum(|it| it.1),
            num_loaded: status.ranks.iter().filter(|rank| rank.facts.is_some()).count(),
            num_ranks: status.ranks.len(),
        };
        // If the channel is full, a later status is shown instead.
        let _ = self.0.try_send(shown);
    }

    /// Removes the bar, as soon as the terminal accepts output.
    pub(crate) fn finish(self) {}
}

/// Waits until a cluster's ranks can compute, and shows the progress.
pub(crate) async fn ready(cluster: &mut Cluster) -> anyhow::Result<Status> {
    let loading = Loading::new();
    let status = cluster.ready(|status| loading.show(status)).await;
    loading.finish();
    Ok(status?)
}

fn draw_loading(shown: &Receiver<LoadingShown>) {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template(
        "{spinner} {msg} {bar:30} {binary_bytes}/{binary_total_bytes} {elapsed}",
    )
    .expect("the template is well formed");
    bar.set_style(style);
    bar.set_message("starting ranks");
    bar.enable_steady_tick(Duration::from_millis(200));
    for LoadingShown { done_bytes, total_bytes, num_loaded, num_ranks } in shown {
        bar.set_length(total_bytes);
        bar.set_position(done_bytes);
        bar.set_message(format!("loading: {num_loaded} of {}", counted(num_ranks, "rank")));
    }
    bar.finish_and_clear();
}

//! Brings a rank from absent to loading: starts its process, accepts its hello, and sends its
//! setup.

use std::time::{Duration, Instant};

use jackalope_protocol::{Phase, ToRank};
use tracing::{debug, info, warn};

use super::connection::ConnectionId;
use super::ending::{EXIT_GRACE, Spawned, aside, bury};
use super::process::{LaunchError, LaunchOrder};
use super::slot::{Slot, State};
use super::{Link, LinkReport, Report, accept};

/// Maximum number of pending attempts to start a rank's process; further attempts fail.
const SPAWNING_MAX: usize = 8;

impl Link {
    pub(super) fn launch(&mut self, rank: usize, now: Instant) {
        let order = LaunchOrder {
            rank,
            attempt: self.slots[rank].num_launches,
            control_addr: self.control_addr,
            ticket: self.config.assignments[rank].ticket,
        };
        if SPAWNING_MAX <= self.slots[rank].num_spawning {
            let message = format!("{SPAWNING_MAX} attempts to start its process are stuck");
            let failure = self.failure(rank, Phase::Starting, message);
            return self.lose(failure, false);
        }
        let reporter = self.reporter.clone().expect("ranks are launched after the start");
        let start = self.launcher.launch(&order);
        let launch = self.slots[rank].spawning(now);
        let is_on_its_way = aside("spawn", move || {
            let result = start().map(Spawned::new);
            reporter.report(LinkReport(Report::Launched { rank, launch, result }));
        });
        self.report_phase(rank);
        if !is_on_its_way {
            self.slots[rank].num_spawning -= 1;
            self.rank_died(rank, "there is no thread to start it", Duration::ZERO, now);
        }
    }

    /// Handles the result of starting a process.
    pub(super) fn launched(
        &mut self,
        rank: usize,
        launch: u64,
        result: Result<Spawned, LaunchError>,
        now: Instant,
    ) {
        let slot = self.slots.get_mut(rank);
        let slot = slot.map(|slot| {
            slot.num_spawning = slot.num_spawning.saturating_sub(1);
            slot.awaits(launch).then_some(slot)
        });
        match (slot.flatten(), result) {
            (Some(slot), Ok(spawned)) => {
                let process = spawned.take();
                debug!(rank, launch, pid = process.pid(), "rank launched");
                let early = slot.launched(process, now);
                self.report_phase(rank);
                early.into_iter().for_each(|arrival| self.arrive(arrival, now));
            }
            (Some(slot), Err(err)) => {
                slot.enter(State::Absent, now);
                let failure = self.failure(rank, Phase::Starting, err.to_string());
                self.lose(failure, !err.is_passing());
            }
            (None, Ok(spawned)) => {
                warn!(rank, launch, "a process that started too late is ended");
                bury([spawned.take()]);
            }
            (None, Err(_)) => {}
        }
    }

    pub(super) fn arrive(&mut self, arrival: accept::Arrival, now: Instant) {
        let rank = arrival.hello.rank as usize;
        let is_spawning = |slot: &&mut Slot| matches!(slot.state, State::Spawning);
        if let Some(slot) = self.slots.get_mut(rank).filter(is_spawning) {
            if slot.keep_early(arrival).is_some() {
                warn!(rank, "a connection of a rank that is being started is dropped");
            }
            return;
        }
        let reporter = self.reporter.clone().expect("connections are accepted after the start");
        let Some(slot) = self.slots.get_mut(rank).filter(|slot| slot.expects(&arrival.hello))
        else {
            warn!(
                rank,
                pid = arrival.hello.pid,
                "a connection of a rank not waited for is dropped"
            );
            return;
        };
        info!(rank, pid = arrival.hello.pid, "rank connected");
        let mlx = arrival.hello.mlx.clone();
        self.num_connections += 1;
        let attached = slot.attach(
            arrival,
            ConnectionId { rank, number: self.num_connections },
            self.config.timeouts.write,
            reporter,
        );
        if let Err(err) = attached {
            let reason = format!("its connection failed: {err}");
            return self.rank_died(rank, &reason, EXIT_GRACE, now);
        }
        slot.enter(State::Loading { progressed_at: now, done_bytes: 0, total_bytes: 0 }, now);
        self.report_phase(rank);
        if let Some(message) = self.other_mlx(rank, &mlx) {
            bury(self.slots[rank].release(now));
            let failure = self.failure(rank, Phase::Starting, message);
            return self.lose(failure, true);
        }
        let setup = self.launcher.refresh(rank, &self.config.assignments[rank].setup);
        self.write(rank, &ToRank::Setup(Box::new(setup)), now);
    }

    /// Returns an error message if a rank's libmlx version differs from a peer's.
    fn other_mlx(&self, rank: usize, mlx: &str) -> Option<String> {
        let mut peers = self.slots.iter().enumerate().filter(|(peer, _)| *peer != rank);
        let (peer, theirs) = peers.find_map(|(peer, slot)| {
            Some((peer, slot.mlx.as_deref().filter(|theirs| *theirs != mlx)?))
        })?;
        Some(format!(
            "libmlx versions differ: {} has {mlx}, {} has {theirs}\n\
             hint: bring every machine to one version with `jackalope sync --hosts FILE`",
            self.rank_name(rank),
            self.rank_name(peer)
        ))
    }
}

//! Embeddings over real ranks, requested from the engine directly.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use jackalope_engine::link::{
    Launch, LaunchOrder, Launcher, Link, LinkConfig, LinkTimeouts, RankAssignment, RankProcess,
};
use jackalope_engine::{
    Engine, EngineConfig, EngineHandle, EngineThread, Event, Generation, KvBudget, RankStatus,
    Request, RequestOptions,
};
use jackalope_fleet::local::{LocalRank, LocalRanks, find_rank_program};
use jackalope_protocol::split::Split;
use jackalope_protocol::{Backend, Device, Pooling, Setup, TokenId};
use rustix::process::Signal;

use crate::checkpoint::exact;
use crate::program::{PATIENCE, send, wait_for};

struct Local(LocalRanks);

impl Launcher for Local {
    fn launch(&mut self, order: &LaunchOrder) -> Launch {
        let rank = self.0.prepare(order.rank, order.control_addr, &order.ticket).unwrap();
        Box::new(|| Ok(Box::new(Process(rank.start().unwrap()))))
    }
}

struct Process(LocalRank);

impl RankProcess for Process {
    fn pid(&self) -> Option<u32> {
        Some(self.0.pid())
    }

    fn try_wait(&mut self) -> Option<String> {
        self.0.try_wait()
    }

    fn kill(&mut self) {
        self.0.kill();
    }

    fn last_words(&self) -> String {
        self.0.last_words()
    }
}

/// An engine with ranks of the shipped model, in f32.
struct Ranks {
    engine: EngineHandle,
    thread: EngineThread,
}

impl Ranks {
    fn start(split: &Split, step_tokens: u32) -> Ranks {
        let setup = Setup {
            num_ranks: u32::try_from(split.num_ranks()).unwrap(),
            model_dir: exact().to_str().unwrap().to_owned(),
            model_source: None,
            split: split.clone(),
            backend: Backend::Tcp,
            device: Device::Cpu,
            num_threads: 1,
            sockets_per_peer: 1,
            checksums: false,
            exact_sums: true,
            collective_timeout_ms: 60_000,
            join_timeout_ms: 60_000,
            silence_timeout_ms: 0,
            orphan_ms: 0,
            profile: false,
            content: None,
            cache_costs: Vec::new(),
        };
        let config = LinkConfig {
            listen: vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)],
            expected: Vec::new(),
            assignments: RankAssignment::local(&setup),
            timeouts: LinkTimeouts::default(),
            first_epoch: 1,
        };
        let program = find_rank_program().unwrap();
        let ranks = LocalRanks::new(&program, Backend::Tcp, split.num_ranks());
        let link = Link::bind(config, Box::new(Local(ranks))).unwrap();
        let config = EngineConfig {
            step_tokens,
            running_max: step_tokens.min(16),
            kv_budget: KvBudget::BytesPerRank(64 << 20),
            ..EngineConfig::default()
        };
        let (engine, thread) = Engine::spawn(config, link);
        assert!(engine.started_blocking(PATIENCE), "{:?}", engine.status().state);
        Ranks { engine, thread }
    }

    fn submit(&self, options: RequestOptions) -> Generation {
        let limits = self.engine.limits().unwrap();
        self.engine.submit(Request::new(options, &limits).unwrap()).unwrap()
    }

    fn embed(&self, pooling: Pooling) -> Generation {
        let embed = Some(pooling);
        self.submit(RequestOptions { prompt: prompt(), embed, ..RequestOptions::default() })
    }

    fn vector(&self, pooling: Pooling) -> Vec<f32> {
        read(self.embed(pooling))
    }

    fn end(self) {
        self.engine.shutdown();
        self.thread.join().unwrap().unwrap();
    }
}

fn prompt() -> Vec<TokenId> {
    (0..300).map(|at| (at * at * 31 + at * 7) % 1900 + 20).collect()
}

fn read(mut generation: Generation) -> Vec<f32> {
    let mut vectors = Vec::new();
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Embedded { vector } => vectors.push(vector),
            Event::Started { .. } | Event::Finished { .. } => {}
            event => panic!("{event:?}"),
        }
    }
    assert_eq!(vectors.len(), 1);
    vectors.remove(0)
}

const POOLINGS: [Pooling; 2] = [Pooling::Mean, Pooling::Last];

/// Returns the largest difference, relative to the largest value.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
    let pairs = found.iter().zip(expected);
    pairs.fold(0.0_f32, |max, (found, expected)| max.max((found - expected).abs())) / largest
}

#[test]
fn ranks_embed_a_prompt_alike_in_chunks_in_a_crowd_and_after_a_loss() {
    let alone = Ranks::start(&Split::Tensor(vec![1]), 512);
    let expected = POOLINGS.map(|pooling| alone.vector(pooling));
    let width = alone.engine.status().ranks[0].facts.clone().unwrap().hidden_size as usize;
    assert!(expected.iter().all(|vector| vector.len() == width) && expected[0] != expected[1]);
    alone.end();

    let over_two = embedded_over(&Split::Tensor(vec![2, 1]));
    for (found, expected) in over_two.iter().zip(&expected) {
        let differs = difference(found, expected);
        assert!(differs < 1e-4, "two ranks differ by {differs:.1e} of the largest value");
    }
    let stages = embedded_over(&Split::Pipeline(vec![1, 2, 1]));
    assert!(stages == expected, "a pipeline has other bits than one rank");
}

/// The embeddings of the prompt by ranks that do nothing else. They are the same in chunks, in a
/// crowd, and when a rank is lost meanwhile.
fn embedded_over(split: &Split) -> [Vec<f32>; 2] {
    let whole = Ranks::start(split, 512);
    let quiet = POOLINGS.map(|pooling| whole.vector(pooling));
    whole.end();

    let ranks = Ranks::start(split, 24);
    let pid = ranks.engine.status().ranks[1].pid.unwrap();
    send(pid, Signal::STOP);
    let crowd: Vec<Generation> = (1..5)
        .map(|seed| {
            let prompt = (0..seed * 9).map(|at| at * 13 + seed).collect();
            let max_tokens = Some(40);
            let options = RequestOptions { prompt, max_tokens, ..RequestOptions::default() };
            ranks.submit(RequestOptions { ignore_eos: true, ..options })
        })
        .collect();
    let mut embeddings = POOLINGS.map(|pooling| ranks.embed(pooling));
    // Rank 1 dies in the middle of a step.
    assert!(matches!(embeddings[0].next_blocking(), Some(Event::Started { .. })));
    send(pid, Signal::KILL);
    for (found, expected) in embeddings.into_iter().map(read).zip(&quiet) {
        assert!(found == *expected, "{split:?}: other bits in chunks, in a crowd, after a loss");
    }
    crowd.into_iter().for_each(|mut generation| while generation.next_blocking().is_some() {});
    let status = ranks.engine.status();
    assert_eq!(status.counters.recoveries, 1);
    assert!(Duration::ZERO < status.recovery.total);
    let moved = |rank: &RankStatus| [rank.timings.sent_bytes, rank.timings.received_bytes];
    assert!(status.ranks.iter().all(|rank| !moved(rank).contains(&0)), "{:?}", status.ranks);
    wait_for("peak of memory", || {
        let ranks = ranks.engine.status().ranks;
        ranks.iter().all(|rank| 0 < rank.memory.peak_bytes).then_some(())
    });
    ranks.end();
    quiet
}

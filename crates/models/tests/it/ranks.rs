//! Several ranks, each a process of its own: MLX bounds the tasks under way in a process, so that
//! ranks that share one would wait for each other for ever.
//!
//! A rank is this test binary, started with only the test [`rank_process`]. It prints its address,
//! reads its job and its peers from one line, and answers with one line. Other tests that need a separate
//! process run in the same way.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use jackalope_kernels::Threads;
use jackalope_mlx::{Device, Group};
use jackalope_models::{Compute, GroupCell, Model, ModelFacts, Parallel, Split, Sums};
use jackalope_transport::{self as transport, GroupConfig, Listener};
use serde::{Deserialize, Serialize};

use crate::recipe::{Case, Golden};
use crate::run::{Logits, follow, generate};

/// Set for the processes that run one function alone.
const MARK: &str = "JACKALOPE_TEST_ALONE";

/// Bound of a collective in a test: far more than it takes, and an end if a rank is stuck.
const OP_TIMEOUT: Duration = Duration::from_secs(60);

/// The two ways to compute.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) enum Way {
    Kernels,
    /// Kernels with sums of which each rank rounds its part.
    RoundedKernels,
    Stock,
}

impl Way {
    pub(crate) const BOTH: [Way; 2] = [Way::Kernels, Way::Stock];

    /// Returns what computes, and makes MLX compute where that works: kernels need the CPU, and MLX's
    /// own operations take a GPU if there is one, where tests must therefore run one at a time.
    pub(crate) fn compute(self) -> Compute {
        let device = match self {
            Way::Stock if jackalope_mlx::gpu_available() => Device::Gpu,
            _ => Device::Cpu,
        };
        jackalope_mlx::set_device(device).unwrap();
        match self {
            Way::Kernels | Way::RoundedKernels => Compute::Kernels(Arc::new(Threads::new(1))),
            Way::Stock => Compute::Stock,
        }
    }

    /// Returns the prompt of tests that compare a case with itself: all of it, or its beginning where MLX
    /// computes it on a CPU in 16 bits, one product at a time.
    pub(crate) fn prompt<'a>(self, golden: &'a Golden, case: &Case) -> &'a [u32] {
        const BEGINNING: usize = 12;
        let is_slow =
            matches!(self, Way::Stock) && case.dtype != "F32" && !jackalope_mlx::gpu_available();
        &golden.prompt[..if is_slow { BEGINNING } else { golden.prompt.len() }]
    }

    /// Returns the parallelism of a single rank.
    pub(crate) fn single(self) -> Parallel {
        Parallel::single(self.compute()).with_sums(self.sums())
    }

    /// Returns the parallelism of one of several ranks without a group, which is enough for loading.
    pub(crate) fn alone(self, rank: usize, split: &Split) -> Parallel {
        let cell = GroupCell::new(Group::single());
        self.part(rank, split, cell)
    }

    fn part(self, rank: usize, split: &Split, group: GroupCell) -> Parallel {
        Parallel::new(rank, split, group, self.compute()).unwrap().with_sums(self.sums())
    }

    fn sums(self) -> Sums {
        match self {
            Way::RoundedKernels => Sums::Rounded,
            Way::Kernels | Way::Stock => Sums::Exact,
        }
    }
}

/// Loads a case, which may have been edited.
pub(crate) fn load(case: &Case, parallel: &Parallel) -> Model {
    Model::load(&case.stored(), parallel, &mut |_| {}).unwrap()
}

/// The job of the ranks: generate tokens for each case and way.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Job {
    pub(crate) cases: Vec<String>,
    pub(crate) ways: Vec<Way>,
    /// Number of groups that are formed one after the other with the same weights.
    pub(crate) num_epochs: u64,
    pub(crate) num_tokens: usize,
    /// Read known tokens instead: only one rank of a pipeline can sample. The last `num_tokens` of
    /// them come one by one.
    pub(crate) follows: bool,
    /// Number of layers to extend the cases to.
    pub(crate) num_layers: Option<usize>,
}

/// Output of a rank for one case in one way in one epoch.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Generated {
    pub(crate) tokens: Vec<u32>,
    /// Bits of the f32 logits.
    rows: Vec<Vec<u32>>,
}

impl Generated {
    pub(crate) fn new((tokens, logits): (Vec<u32>, Logits)) -> Generated {
        let bits = |row: &Vec<f32>| row.iter().map(|logit| logit.to_bits()).collect();
        Generated { tokens, rows: logits.iter().map(bits).collect() }
    }

    pub(crate) fn logits(&self) -> Logits {
        let floats = |row: &Vec<u32>| row.iter().map(|bits| f32::from_bits(*bits)).collect();
        self.rows.iter().map(floats).collect()
    }
}

/// Whether a rank embeds tokens: in a pipeline only the last rank, which has the first layers.
fn embeds(rank: usize, split: &Split) -> bool {
    match split {
        Split::Pipeline(layers) => rank + 1 == layers.len(),
        Split::Tensor(_) => true,
    }
}

#[derive(Deserialize, Serialize)]
struct Order {
    rank: usize,
    split: Split,
    peers: Vec<SocketAddr>,
    job: Job,
}

/// Runs a job on as many processes as the split has parts; what each of them generated, by rank, in
/// the order of cases, ways and epochs.
pub(crate) fn run_ranks(split: &Split, job: &Job) -> Vec<Vec<Generated>> {
    let start = |_| Alone::start("ranks::rank_process");
    let mut ranks: Vec<Alone> = split.numbers().iter().map(start).collect();
    let peers: Vec<SocketAddr> = ranks.iter_mut().map(|rank| rank.receive("listening")).collect();
    for (rank, process) in ranks.iter_mut().enumerate() {
        let (split, peers, job) = (split.clone(), peers.clone(), job.clone());
        process.send(&Order { rank, split, peers, job });
    }
    ranks.iter_mut().map(|rank| rank.receive("generated")).collect()
}

/// A child process that runs one function of this binary, and ends with this value.
pub(crate) struct Alone {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Alone {
    #[expect(clippy::disallowed_methods, reason = "the child ends with its `Alone`")]
    pub(crate) fn start(function: &str) -> Alone {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", function, "--nocapture"])
            .env(MARK, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Alone { process, output }
    }

    fn send(&mut self, order: &Order) {
        let line = serde_json::to_string(order).unwrap();
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Returns the value after `mark`, and skips the output of the test harness.
    pub(crate) fn receive<T: for<'de> Deserialize<'de>>(&mut self, mark: &str) -> T {
        let mut line = String::new();
        loop {
            line.clear();
            let num_read = self.output.read_line(&mut line).unwrap();
            assert!(0 < num_read, "a process ended before it said `{mark}`");
            if let Some((_, value)) = line.split_once(&format!("{mark}: ")) {
                return serde_json::from_str(value).unwrap();
            }
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // It has answered, or its test has failed already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// True in a process that [`Alone::start`] has started.
#[expect(clippy::disallowed_methods, reason = "the mark tells such a process from a test run")]
pub(crate) fn is_alone() -> bool {
    std::env::var(MARK).is_ok()
}

/// Main function of a rank's process. Not a test: without the variable it does nothing.
#[test]
fn rank_process() {
    if !is_alone() {
        return;
    }
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    say("listening", &listener.local_addr());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let order: Order = serde_json::from_str(&line).unwrap();
    let join = |epoch| {
        let mut config = GroupConfig::new(order.rank, order.peers.clone(), epoch, [7; 32]);
        config.op_timeout = OP_TIMEOUT;
        Group::native(transport::Group::join(&listener, config).unwrap())
    };
    let cell = GroupCell::new(join(0));
    let golden = Golden::read();
    let mut epoch = 0;
    let mut generated = Vec::new();
    for case in order.job.cases.iter().map(|name| golden.case(name)) {
        for way in &order.job.ways {
            let parallel = way.part(order.rank, &order.split, cell.clone());
            let model = match order.job.num_layers {
                Some(num_layers) => load(&case.deepened(num_layers), &parallel),
                None => load(case, &parallel),
            };
            let prompt = way.prompt(&golden, case);
            for _ in 0..order.job.num_epochs {
                let result = match order.job.follows {
                    true => {
                        let mut tokens = prompt.to_vec();
                        if !embeds(order.rank, &order.split) {
                            // As a stage that does not embed: it never learns the tokens that others sample.
                            let known = tokens.len() - order.job.num_tokens;
                            tokens[known..].fill(0);
                        }
                        let logits = follow(&model, &tokens, order.job.num_tokens);
                        (Vec::new(), logits)
                    }
                    false => generate(&model, prompt, order.job.num_tokens),
                };
                generated.push(Generated::new(result));
                if 1 < order.job.num_epochs {
                    epoch += 1;
                    cell.replace(join(epoch));
                }
            }
        }
    }
    say("generated", &generated);
}

pub(crate) fn say(mark: &str, value: &impl Serialize) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "\n{mark}: {}", serde_json::to_string(value).unwrap()).unwrap();
}

/// Returns the facts that the ranks of a group would report.
pub(crate) fn facts_of_ranks(case: &Case, split: &Split) -> Vec<ModelFacts> {
    let facts = |rank| load(case, &Way::Kernels.alone(rank, split)).facts().clone();
    (0..split.num_ranks()).map(facts).collect()
}

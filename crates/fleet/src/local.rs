//! Starts ranks on this machine.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jackalope_protocol::{Backend, Secret};
use thiserror::Error;

use crate::process::{Child, Spawn, describe};
use crate::stock::StockSettings;

/// Name of the rank program.
pub const RANK_PROGRAM: &str = "jackalope-rank";

/// Reason why a rank could not be started.
#[derive(Debug, Error)]
pub enum LocalError {
    /// The rank program is not beside the running program.
    #[error(
        "`{RANK_PROGRAM}` is not beside {}\n\
         hint: build it with `cargo build --release -p jackalope-runner`",
        .beside.display()
    )]
    NoProgram {
        /// Path of the running program.
        beside: PathBuf,
    },
    /// The system cannot start the rank program.
    #[error("starting {}: {source}", .program.display())]
    Spawn {
        /// The rank program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The settings of a stock transport could not be created.
    #[error("preparing the group's settings: {0}")]
    Settings(io::Error),
}

/// Starts rank processes of one cluster on this machine.
#[derive(Debug)]
pub struct LocalRanks {
    program: PathBuf,
    backend: Backend,
    num_ranks: usize,
    /// Variables set for every rank.
    env: Vec<(String, String)>,
    /// Time within which the system has to execute the rank program; `None` for the default.
    start_timeout: Option<Duration>,
    /// Settings of a stock group, renewed whenever rank 0 starts.
    stock: Option<StockSettings>,
}

/// The process of one rank.
#[derive(Debug)]
pub struct LocalRank {
    child: Child,
}

/// A rank whose process is ready to be started.
#[derive(Debug)]
pub struct PreparedRank(Spawn);

/// Returns the path of the rank program beside the running one.
///
/// # Errors
/// [`LocalError::NoProgram`] if no rank program is beside the running one.
pub fn find_rank_program() -> Result<PathBuf, LocalError> {
    let own = std::env::current_exe()
        .map_err(|source| LocalError::Spawn { program: PathBuf::from(RANK_PROGRAM), source })?;
    // Test binaries are one folder below the programs.
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(RANK_PROGRAM))
        .find(|path| path.is_file())
        .ok_or(LocalError::NoProgram { beside: own })
}

impl LocalRanks {
    /// Prepares `num_ranks` ranks of the rank program at `program`. Starts none.
    pub fn new(program: &Path, backend: Backend, num_ranks: usize) -> LocalRanks {
        LocalRanks {
            program: program.to_owned(),
            backend,
            num_ranks,
            env: Vec::new(),
            start_timeout: None,
            stock: None,
        }
    }

    /// Sets the environment variables of every rank that is started from now on.
    pub fn set_env(&mut self, env: Vec<(String, String)>) {
        self.env = env;
    }

    /// Sets the time within which the system has to execute the rank program.
    pub fn set_start_timeout(&mut self, timeout: Duration) {
        self.start_timeout = Some(timeout);
    }

    /// Starts one rank, which connects to the coordinator at `control_addr`.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(
        &mut self,
        rank: usize,
        control_addr: SocketAddr,
        secret: &Secret,
    ) -> Result<LocalRank, LocalError> {
        self.prepare(rank, control_addr, secret)?.start()
    }

    /// Does all of [`LocalRanks::start`] except starting the process, which may block for as long
    /// as the system takes to execute the program.
    ///
    /// # Errors
    /// If the settings of a stock transport cannot be created.
    pub fn prepare(
        &mut self,
        rank: usize,
        control_addr: SocketAddr,
        secret: &Secret,
    ) -> Result<PreparedRank, LocalError> {
        let mut spawn = Spawn::new(&self.program, format!("rank {rank}"));
        spawn.args = ["serve", "--control", &control_addr.to_string(), "--rank", &rank.to_string()]
            .map(OsString::from)
            .to_vec();
        spawn.input = secret_line(secret);
        spawn.env = self.env.iter().map(|(name, value)| (name.clone(), value.into())).collect();
        spawn.env.extend(self.stock_env(rank)?);
        spawn.start_timeout = self.start_timeout.unwrap_or(spawn.start_timeout);
        Ok(PreparedRank(spawn))
    }

    /// Starts one rank of a link measurement. It prints the address on which it listens, then waits
    /// for a line with the addresses of all ranks.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start_link(
        &mut self,
        rank: usize,
        args: &[String],
        secret: &Secret,
    ) -> Result<Child, LocalError> {
        let mut spawn = Spawn::new(&self.program, format!("rank {rank}"));
        spawn.args = ["link", "--rank", &rank.to_string()].map(OsString::from).to_vec();
        spawn.args.extend(args.iter().map(OsString::from));
        spawn.input = secret_line(secret);
        spawn.env = self.stock_env(rank)?;
        spawn.reads_stdout = true;
        spawn.start().map_err(|source| LocalError::Spawn { program: self.program.clone(), source })
    }

    /// Returns the variables of a stock group. Its ports can be used only once: after a failure all
    /// its ranks are restarted, rank 0 first.
    fn stock_env(&mut self, rank: usize) -> Result<Vec<(String, OsString)>, LocalError> {
        if !self.backend.is_stock() {
            return Ok(Vec::new());
        }
        if rank == 0 || self.stock.is_none() {
            let dir = std::env::temp_dir();
            let settings = StockSettings::new(self.backend, self.num_ranks, &dir)
                .map_err(LocalError::Settings)?;
            self.stock = Some(settings);
        }
        Ok(self.stock.as_ref().map(|stock| stock.env(rank)).unwrap_or_default())
    }
}

fn secret_line(secret: &Secret) -> Vec<u8> {
    format!("{}\n", secret.to_hex()).into_bytes()
}

impl PreparedRank {
    /// Starts the process.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(self) -> Result<LocalRank, LocalError> {
        let program = self.0.program.clone();
        match self.0.start() {
            Ok(child) => Ok(LocalRank { child }),
            Err(source) => Err(LocalError::Spawn { program, source }),
        }
    }
}

impl LocalRank {
    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Describes how the process ended; `None` while it runs. Does not block.
    pub fn try_wait(&mut self) -> Option<String> {
        self.child.try_wait().map(describe)
    }

    /// Kills the process. Does not wait until it is gone.
    pub fn kill(&mut self) {
        self.child.signal_kill();
    }

    /// Returns the last lines that the process wrote to its standard error.
    pub fn last_words(&self) -> String {
        self.child.last_words()
    }
}

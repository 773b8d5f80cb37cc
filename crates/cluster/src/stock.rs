//! What MLX's own transports read from the environment, for ranks on one machine.
//!
//! A ring reads `MLX_HOSTFILE` (a JSON list with each rank's list of `host:port`) and `MLX_RANK`;
//! NCCL reads `NCCL_HOST_IP`, `NCCL_PORT`, `MLX_RANK` and `MLX_WORLD_SIZE`; JACCL needs a device
//! matrix that describes real cables (`MLX_IBV_DEVICES`, `MLX_JACCL_COORDINATOR`), which must
//! already be in the environment.

use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use jackalope_protocol::Backend;

/// The settings of one group of local ranks; the hostfile goes with it.
#[derive(Debug)]
pub struct StockSettings {
    backend: Backend,
    num_ranks: usize,
    hostfile: Option<PathBuf>,
    port: u16,
}

impl StockSettings {
    /// Finds free ports, and writes the hostfile into `dir` where the backend wants one.
    ///
    /// # Errors
    /// If there are no ports or the file cannot be written.
    pub fn new(backend: Backend, num_ranks: usize, dir: &Path) -> io::Result<StockSettings> {
        let ports = free_ports(num_ranks)?;
        let port = ports.first().copied().unwrap_or(0);
        let mut hostfile = None;
        if backend == Backend::Ring {
            let path = dir.join(format!("jackalope-ring-{}-{port}.json", std::process::id()));
            let hosts: Vec<Vec<String>> =
                ports.iter().map(|port| vec![format!("127.0.0.1:{port}")]).collect();
            std::fs::write(&path, serde_json::json!(hosts).to_string())?;
            hostfile = Some(path);
        }
        Ok(StockSettings { backend, num_ranks, hostfile, port })
    }

    /// The environment of one rank.
    pub fn env(&self, rank: usize) -> Vec<(String, OsString)> {
        let mut env = vec![("MLX_RANK".to_owned(), OsString::from(rank.to_string()))];
        if let Some(hostfile) = &self.hostfile {
            env.push(("MLX_HOSTFILE".to_owned(), hostfile.into()));
        }
        if self.backend == Backend::Nccl {
            env.push(("NCCL_HOST_IP".to_owned(), "127.0.0.1".into()));
            env.push(("NCCL_PORT".to_owned(), self.port.to_string().into()));
            env.push(("MLX_WORLD_SIZE".to_owned(), self.num_ranks.to_string().into()));
        }
        env
    }
}

impl Drop for StockSettings {
    fn drop(&mut self) {
        if let Some(hostfile) = &self.hostfile {
            // A file left behind in the temporary directory harms nobody.
            std::fs::remove_file(hostfile).ok();
        }
    }
}

/// Ports that were free a moment ago; all are held until the last one is found, so they differ.
fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_gets_one_list_of_addresses_per_rank() {
        let settings = StockSettings::new(Backend::Ring, 3, &std::env::temp_dir()).unwrap();
        let env = settings.env(2);
        assert_eq!(env[0], ("MLX_RANK".to_owned(), OsString::from("2")));
        assert_eq!(env[1].0, "MLX_HOSTFILE");
        let path = PathBuf::from(&env[1].1);
        let hosts: Vec<Vec<String>> =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(hosts.len(), 3);
        assert!(hosts.iter().all(|it| it.len() == 1 && it[0].starts_with("127.0.0.1:")));
        drop(settings);
        assert!(!path.exists(), "the file goes with the settings");
    }

    #[test]
    fn nccl_is_told_where_rank_zero_listens() {
        let settings = StockSettings::new(Backend::Nccl, 2, &std::env::temp_dir()).unwrap();
        let names: Vec<String> = settings.env(1).into_iter().map(|it| it.0).collect();
        assert_eq!(names, ["MLX_RANK", "NCCL_HOST_IP", "NCCL_PORT", "MLX_WORLD_SIZE"]);
    }
}

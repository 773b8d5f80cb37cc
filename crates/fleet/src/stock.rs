//! The environment variables that MLX's own transports read.
//!
//! A ring reads `MLX_HOSTFILE` (a JSON list with each rank's list of `host:port`) and `MLX_RANK`;
//! NCCL reads `NCCL_HOST_IP`, `NCCL_PORT`, `MLX_RANK` and `MLX_WORLD_SIZE`; JACCL needs a device
//! matrix that describes real cables (`MLX_IBV_DEVICES`, `MLX_JACCL_COORDINATOR`), which must
//! already be in the environment.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use jackalope_protocol::Backend;

use crate::agent::EnvFile;
use crate::hostfile::{ConvertError, Host, Hostfile, HostfileShape, RingPorts, convert};

/// Settings of one rank.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RankSettings {
    /// Environment variables.
    pub env: Vec<(String, String)>,
    /// Environment variables that name files, with the content of those files.
    pub files: Vec<EnvFile>,
}

/// Returns the settings of one rank of a group over several machines. The group listens on ports
/// from `first_port` on.
///
/// # Errors
/// [`ConvertError`] if the hosts lack what the transport needs: addresses or devices.
pub fn settings(
    backend: Backend,
    hosts: &[Host],
    first_port: u16,
    rank: usize,
) -> Result<RankSettings, ConvertError> {
    let hostfile = Hostfile { hosts: hosts.to_vec(), ..Hostfile::default() };
    let write = |shape, ports| convert(&hostfile, shape, ports).map(|written| written.text);
    let mut settings = RankSettings::default();
    let mut set = |key: &str, value: String| settings.env.push((key.to_owned(), value));
    set("MLX_RANK", rank.to_string());
    // The address of rank 0. If it is missing, the conversions below report that.
    let first_ip = hosts.first().map(|host| match host.ips.first() {
        Some(ip) => ip.to_string(),
        None => Ipv4Addr::LOCALHOST.to_string(),
    });
    let coordinator = first_ip.unwrap_or_default();
    match backend {
        Backend::Tcp => {}
        Backend::Ring => {
            let content =
                write(HostfileShape::Ring, Some(RingPorts { first: first_port, connections: 1 }))?;
            settings.files.push(EnvFile { variable: "MLX_HOSTFILE".to_owned(), content });
        }
        Backend::Jaccl => {
            set("MLX_JACCL_COORDINATOR", format!("{coordinator}:{first_port}"));
            let content = write(HostfileShape::Matrix, None)?;
            settings.files.push(EnvFile { variable: "MLX_IBV_DEVICES".to_owned(), content });
        }
        Backend::Nccl => {
            set("NCCL_HOST_IP", coordinator);
            set("NCCL_PORT", first_port.to_string());
            set("MLX_WORLD_SIZE", hosts.len().to_string());
        }
    }
    Ok(settings)
}

/// Settings of one group of local ranks. Dropping them removes the hostfile.
#[derive(Debug)]
pub struct StockSettings {
    backend: Backend,
    num_ranks: usize,
    hostfile: Option<PathBuf>,
    port: u16,
}

impl StockSettings {
    /// Finds free ports, and writes the hostfile into `dir` if the backend needs one.
    ///
    /// # Errors
    /// If there are not enough free ports or the file cannot be written.
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

    /// Returns the environment variables of one rank.
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
            // A file that stays in the temporary directory does no harm.
            std::fs::remove_file(hostfile).ok();
        }
    }
}

/// Returns ports that were free a moment ago. All are bound until the last one is found, so that
/// they differ.
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
    fn ranks_on_several_machines_get_what_mlx_launch_gives_them() {
        let host = |ip: &str, rdma: [&str; 2]| Host {
            ssh: format!("mac-{ip}"),
            ips: vec![ip.parse().unwrap()],
            rdma: rdma
                .map(|it| Some(it.to_owned()).into_iter().filter(|it| !it.is_empty()).collect())
                .to_vec(),
            ..Host::default()
        };
        let hosts = [host("10.0.0.1", ["", "rdma_en5"]), host("10.0.0.2", ["rdma_en4", ""])];
        let read =
            |file: &EnvFile| -> serde_json::Value { serde_json::from_str(&file.content).unwrap() };
        let ring = settings(Backend::Ring, &hosts, 5000, 1).unwrap();
        assert_eq!(ring.env, [("MLX_RANK".to_owned(), "1".to_owned())]);
        assert_eq!(ring.files[0].variable, "MLX_HOSTFILE");
        let wanted = serde_json::json!([["10.0.0.1:5000"], ["10.0.0.2:5001"]]);
        assert_eq!(read(&ring.files[0]), wanted);
        let jaccl = settings(Backend::Jaccl, &hosts, 5000, 0).unwrap();
        assert_eq!(jaccl.env[1], ("MLX_JACCL_COORDINATOR".to_owned(), "10.0.0.1:5000".to_owned()));
        assert_eq!(jaccl.files[0].variable, "MLX_IBV_DEVICES");
        let wanted = serde_json::json!([[null, "rdma_en5"], ["rdma_en4", null]]);
        assert_eq!(read(&jaccl.files[0]), wanted);
        let nameless = [Host::default(), Host::default()];
        assert!(settings(Backend::Ring, &nameless, 5000, 0).is_err());
    }

    #[test]
    fn nccl_gets_the_address_of_rank_zero() {
        let settings = StockSettings::new(Backend::Nccl, 2, &std::env::temp_dir()).unwrap();
        let names: Vec<String> = settings.env(1).into_iter().map(|it| it.0).collect();
        assert_eq!(names, ["MLX_RANK", "NCCL_HOST_IP", "NCCL_PORT", "MLX_WORLD_SIZE"]);
    }
}

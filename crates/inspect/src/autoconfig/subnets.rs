//! Networks of two addresses for cables, which overlap with no network of any machine.

use std::net::{IpAddr, Ipv4Addr};

use crate::report::Network;

/// Ranges to search, in this order: private networks that homes and offices rarely use, and last
/// the range for benchmarks of network devices (RFC 2544).
const RANGES: [([u8; 4], u8); 4] =
    [([10, 254, 0, 0], 16), ([172, 30, 0, 0], 16), ([192, 168, 248, 0], 21), ([198, 18, 0, 0], 15)];

/// Prefix length of a network with two addresses.
pub(super) const PREFIX_LEN: u8 = 30;

/// Assigns a network to each link that needs one.
#[derive(Debug)]
pub(super) struct Subnets {
    taken: Vec<Network>,
}

impl Subnets {
    /// Creates an allocator that avoids the networks that machines have or route to.
    pub(super) fn new(taken: Vec<Network>) -> Subnets {
        Subnets { taken }
    }

    /// Returns the two addresses of a free network, and marks the network as taken.
    pub(super) fn take(&mut self) -> Option<[IpAddr; 2]> {
        let all = RANGES.iter().flat_map(|(ip, prefix_len)| {
            let first = Ipv4Addr::from(*ip).to_bits();
            let count = 1u32 << (PREFIX_LEN - prefix_len);
            (0..count).map(move |idx| first + idx * 4)
        });
        let network = |bits: u32| Network {
            ip: IpAddr::V4(Ipv4Addr::from_bits(bits)),
            prefix_len: PREFIX_LEN,
        };
        let is_free = |bits: &u32| !self.taken.iter().any(|it| it.overlaps(network(*bits)));
        let mut all = all;
        let bits = all.find(is_free)?;
        self.taken.push(network(bits));
        Some([1, 2].map(|host| IpAddr::V4(Ipv4Addr::from_bits(bits + host))))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn network(text: &str) -> Network {
        let (ip, prefix_len) = text.split_once('/').unwrap();
        Network { ip: ip.parse().unwrap(), prefix_len: prefix_len.parse().unwrap() }
    }

    fn first(taken: &[&str]) -> Option<String> {
        let mut subnets = Subnets::new(taken.iter().map(|it| network(it)).collect());
        subnets.take().map(|[ip, _]| ip.to_string())
    }

    #[test]
    fn the_first_unused_network_is_given() {
        assert_eq!(first(&[]).unwrap(), "10.254.0.1");
        assert_eq!(first(&["10.254.0.0/30", "192.168.1.0/24"]).unwrap(), "10.254.0.5");
        assert_eq!(first(&["10.0.0.0/8"]).unwrap(), "172.30.0.1");
        assert_eq!(first(&["10.0.0.0/8", "172.16.0.0/12"]).unwrap(), "192.168.248.1");
        assert_eq!(first(&["0.0.0.0/1", "128.0.0.0/1"]), None);
    }

    proptest! {
        #[test]
        fn given_networks_overlap_neither_each_other_nor_any_taken(
            taken in prop::collection::vec((any::<u32>(), any::<bool>(), 8u8..=32), 0..40),
        ) {
            let taken: Vec<Network> = taken
                .into_iter()
                .map(|(bits, is_near, prefix_len)| {
                    // Half of the networks are in the ranges that are searched.
                    let bits = if is_near { 0x0afe_0000 | (bits & 0xffff) } else { bits };
                    let addr = jackalope_protocol::machine::InterfaceAddr {
                        ip: IpAddr::V4(Ipv4Addr::from_bits(bits)),
                        prefix_len,
                    };
                    Network::of(addr)
                })
                .collect();
            let mut subnets = Subnets::new(taken.clone());
            let mut given: Vec<Network> = Vec::new();
            for _ in 0..6 {
                let Some([a, b]) = subnets.take() else { break };
                let addr = jackalope_protocol::machine::InterfaceAddr { ip: a, prefix_len: PREFIX_LEN };
                let network = Network::of(addr);
                prop_assert!(network.holds(b) && a != b);
                prop_assert!(taken.iter().chain(&given).all(|it| !it.overlaps(network)));
                given.push(network);
            }
        }
    }
}

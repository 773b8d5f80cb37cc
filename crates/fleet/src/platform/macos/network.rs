//! Parses addresses on macOS.

use std::net::{IpAddr, Ipv6Addr};

use jackalope_protocol::machine::{Interface, InterfaceAddr};

/// Parses the interfaces that are up and have addresses from `ifconfig -a`.
pub(super) fn interfaces(text: &str) -> Vec<Interface> {
    let blocks = blocks(text).into_iter().map(|(name, lines)| Interface {
        name: name.to_owned(),
        addrs: lines.iter().filter_map(|line| address(line)).collect(),
        bits_per_s: lines.iter().find_map(|line| media(line)),
    });
    blocks.filter(|it| !it.addrs.is_empty()).collect()
}

/// Returns the interfaces with their lines. A line that does not begin with a blank starts a new
/// interface.
pub fn blocks(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut blocks: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        match line.split_once(": flags=") {
            Some((name, _)) if !line.starts_with(char::is_whitespace) => {
                blocks.push((name, Vec::new()));
            }
            _ => {
                if let Some((_, lines)) = blocks.last_mut() {
                    lines.push(line);
                }
            }
        }
    }
    blocks
}

/// Parses `inet 10.0.0.1 netmask 0xffffff00 …` and `inet6 fe80::1%en0 prefixlen 64 …`.
fn address(line: &str) -> Option<InterfaceAddr> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["inet", ip, "netmask", mask, ..] => {
            let mask = u32::from_str_radix(mask.strip_prefix("0x")?, 16).ok()?;
            let prefix_len = u8::try_from(mask.leading_ones()).ok()?;
            Some(InterfaceAddr { ip: IpAddr::V4(ip.parse().ok()?), prefix_len })
        }
        ["inet6", ip, "prefixlen", prefix_len, ..] => {
            let ip: Ipv6Addr = ip.split('%').next()?.parse().ok()?;
            Some(InterfaceAddr { ip: IpAddr::V6(ip), prefix_len: prefix_len.parse().ok()? })
        }
        _ => None,
    }
}

/// Parses `media: autoselect (10Gbase-T <full-duplex>)`. Thunderbolt reports no speed here.
fn media(line: &str) -> Option<u64> {
    let media = line.trim().strip_prefix("media: ")?;
    let name = media.split('(').nth(1)?;
    let digits: String = name.chars().take_while(char::is_ascii_digit).collect();
    let number: u64 = digits.parse().ok()?;
    match name.as_bytes().get(digits.len()) {
        Some(b'G') => Some(number * 1_000_000_000),
        Some(b'b') => Some(number * 1_000_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IFCONFIG: &str = include_str!("../../../tests/recorded/ifconfig-macos.txt");

    #[test]
    fn interfaces_have_their_prefix_lengths() {
        let found = interfaces(IFCONFIG);
        let names: Vec<&str> = found.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["lo0", "en0", "en3", "awdl0", "utun0"]);
        assert_eq!(found[1].addrs[1].ip.to_string(), "192.168.1.237");
        assert_eq!(found[1].addrs[1].prefix_len, 24);
        assert_eq!(found[1].bits_per_s, Some(10_000_000_000));
        assert_eq!(found[2].addrs[0].prefix_len, 30);
        assert_eq!(found[2].bits_per_s, None);
    }
}

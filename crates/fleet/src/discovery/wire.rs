//! Encoding of the datagrams.
//!
//! ```text
//!   query        magic, format, 0, nonce, tag, zeros up to 128 bytes
//!   answer       magic, format, 1, nonce, protocol, version, port, id, addresses, tag
//!   to strangers magic, format, 2, nonce, protocol, version
//! ```
//!
//! A tag is an HMAC-SHA256 (RFC 2104), keyed with the cluster's secret, over all bytes before it.
//! The answer to strangers is shorter than a query, so that it cannot be used to amplify an attack.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hmac::{Hmac, KeyInit, Mac};
use jackalope_protocol::Secret;
use jackalope_protocol::secure::Build;
use sha2::Sha256;

const MAGIC: [u8; 4] = *b"JKLD";

/// Version of the datagrams' format. It is not raised with the protocol of agents and ranks, so
/// that agents of different versions can report their versions to each other.
const FORMAT: u8 = 1;

const QUERY: u8 = 0;
const ANSWER: u8 = 1;
const TO_STRANGERS: u8 = 2;

const QUERY_BYTES: usize = 128;
const NONCE_BYTES: usize = 16;
const TAG_BYTES: usize = 32;

/// Maximum length of a version in bytes.
const VERSION_BYTES_MAX: usize = 32;

/// Maximum number of addresses in one answer.
pub(super) const ADDRS_MAX: usize = 32;

/// Maximum length of a datagram; longer ones are truncated.
pub(super) const DATAGRAM_BYTES_MAX: usize = 1024;

/// Random number that identifies the answers to one query.
pub(super) type Nonce = [u8; NONCE_BYTES];

/// A query.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Query {
    pub(super) nonce: Nonce,
    /// Whether the sender holds the secret.
    pub(super) is_ours: bool,
}

/// An answer to a query.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Answer {
    /// From an agent that holds the secret.
    Ours(OurAgent),
    /// From an agent that does not hold the secret, or that rejected our proof. Not authenticated.
    Stranger(Build),
}

/// An agent of this cluster.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct OurAgent {
    pub(super) build: Build,
    /// Port on which the agent listens.
    pub(super) port: u16,
    /// Random number chosen when the agent started.
    pub(super) id: u64,
    /// All addresses of the agent's machine.
    pub(super) addrs: Vec<IpAddr>,
}

fn mac(secret: &Secret, bytes: &[u8]) -> Hmac<Sha256> {
    let mac = Hmac::<Sha256>::new_from_slice(&secret.0).expect("keys of any length are taken");
    mac.chain_update(bytes)
}

fn tag(secret: &Secret, bytes: &[u8]) -> [u8; TAG_BYTES] {
    mac(secret, bytes).finalize().into_bytes().into()
}

/// Compares tags in constant time.
fn is_tag(secret: &Secret, bytes: &[u8], found: &[u8]) -> bool {
    mac(secret, bytes).verify_slice(found).is_ok()
}

fn head(kind: u8, nonce: &Nonce) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend([FORMAT, kind]);
    bytes.extend(nonce);
    bytes
}

fn push_build(bytes: &mut Vec<u8>, build: &Build) {
    let version = build.version.as_bytes();
    let version = &version[..version.len().min(VERSION_BYTES_MAX)];
    bytes.extend(build.protocol.to_le_bytes());
    bytes.push(version.len() as u8);
    bytes.extend(version);
}

/// Encodes a query with proof of the secret.
pub(super) fn query(secret: &Secret, nonce: &Nonce) -> Vec<u8> {
    let mut bytes = head(QUERY, nonce);
    bytes.extend(tag(secret, &bytes));
    bytes.resize(QUERY_BYTES, 0);
    bytes
}

/// Decodes a query; `None` for any other datagram.
pub(super) fn read_query(bytes: &[u8], secret: &Secret) -> Option<Query> {
    let mut rest = Reader(bytes);
    rest.head(QUERY)?;
    let nonce = rest.array()?;
    let tag: [u8; TAG_BYTES] = rest.array()?;
    let signed = bytes.len() - rest.0.len() - TAG_BYTES;
    (bytes.len() == QUERY_BYTES)
        .then(|| Query { nonce, is_ours: is_tag(secret, &bytes[..signed], &tag) })
}

impl OurAgent {
    /// Encodes an answer to a sender that holds the secret.
    pub(super) fn answer(&self, secret: &Secret, nonce: &Nonce) -> Vec<u8> {
        let mut bytes = head(ANSWER, nonce);
        push_build(&mut bytes, &self.build);
        bytes.extend(self.port.to_le_bytes());
        bytes.extend(self.id.to_le_bytes());
        let addrs = &self.addrs[..self.addrs.len().min(ADDRS_MAX)];
        bytes.push(addrs.len() as u8);
        for addr in addrs {
            match addr {
                IpAddr::V4(ip) => {
                    bytes.push(4);
                    bytes.extend(ip.octets());
                }
                IpAddr::V6(ip) => {
                    bytes.push(6);
                    bytes.extend(ip.octets());
                }
            }
        }
        bytes.extend(tag(secret, &bytes));
        bytes
    }
}

/// Encodes an answer to a sender that does not hold the secret.
pub(super) fn answer_to_strangers(build: &Build, nonce: &Nonce) -> Vec<u8> {
    let mut bytes = head(TO_STRANGERS, nonce);
    push_build(&mut bytes, build);
    bytes
}

/// Decodes an answer to the query with this nonce; `None` for any other datagram.
pub(super) fn read_answer(bytes: &[u8], secret: &Secret, nonce: &Nonce) -> Option<Answer> {
    let mut rest = Reader(bytes);
    let kind = rest.any_head()?;
    if rest.array::<NONCE_BYTES>()? != *nonce {
        return None;
    }
    match kind {
        TO_STRANGERS => {
            let build = rest.build()?;
            rest.0.is_empty().then_some(Answer::Stranger(build))
        }
        ANSWER => {
            let (signed, tag) = bytes.split_at_checked(bytes.len().checked_sub(TAG_BYTES)?)?;
            if !is_tag(secret, signed, tag) {
                return None;
            }
            let build = rest.build()?;
            let port = u16::from_le_bytes(rest.array()?);
            let id = u64::from_le_bytes(rest.array()?);
            let [num_addrs] = rest.array()?;
            if ADDRS_MAX < usize::from(num_addrs) {
                return None;
            }
            let addrs = (0..num_addrs).map(|_| rest.addr()).collect::<Option<Vec<_>>>()?;
            let is_whole = rest.0.len() == TAG_BYTES;
            is_whole.then_some(Answer::Ours(OurAgent { build, port, id, addrs }))
        }
        _ => None,
    }
}

/// The bytes that have not been read yet.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn any_head(&mut self) -> Option<u8> {
        let (magic, [format, kind]) = (self.array()?, self.array()?);
        (magic == MAGIC && format == FORMAT).then_some(kind)
    }

    fn head(&mut self, kind: u8) -> Option<()> {
        (self.any_head()? == kind).then_some(())
    }

    /// Reads a version. Versions are printed, so other characters than those of versions are
    /// rejected.
    fn build(&mut self) -> Option<Build> {
        let protocol = u16::from_le_bytes(self.array()?);
        let [length] = self.array()?;
        let (version, rest) = self.0.split_at_checked(usize::from(length))?;
        self.0 = rest;
        let version = str::from_utf8(version).ok()?;
        let is_one = version.len() <= VERSION_BYTES_MAX
            && version.chars().all(|c| c.is_ascii_alphanumeric() || ".-+".contains(c));
        is_one.then(|| Build { protocol, version: version.to_owned() })
    }

    fn addr(&mut self) -> Option<IpAddr> {
        match self.array()? {
            [4] => Some(Ipv4Addr::from(self.array::<4>()?).into()),
            [6] => Some(Ipv6Addr::from(self.array::<16>()?).into()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OURS: Secret = Secret([7; 32]);
    const OTHER: Secret = Secret([8; 32]);
    const NONCE: Nonce = [3; NONCE_BYTES];

    fn agent(num_addrs: u8) -> OurAgent {
        let addr = |last: u8| match last % 2 {
            0 => IpAddr::from([10, 0, 0, last]),
            _ => IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, u16::from(last)]),
        };
        let addrs = (0..num_addrs).map(addr).collect();
        OurAgent { build: Build::ours(), port: 18081, id: 42, addrs }
    }

    #[test]
    fn a_tag_is_an_hmac() {
        // RFC 4231, test case 1; HMAC pads a shorter key with zeros.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let wanted = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
        assert_eq!(Secret(tag(&Secret(key), b"Hi There")).to_hex(), wanted);
    }

    #[test]
    fn only_who_holds_the_secret_asks_as_one_of_us() {
        let bytes = query(&OURS, &NONCE);
        assert_eq!(read_query(&bytes, &OURS), Some(Query { nonce: NONCE, is_ours: true }));
        assert_eq!(read_query(&bytes, &OTHER), Some(Query { nonce: NONCE, is_ours: false }));
        let mut other_nonce = bytes.clone();
        other_nonce[6] ^= 1;
        assert!(!read_query(&other_nonce, &OURS).unwrap().is_ours, "the tag covers the nonce");
        assert!(answer_to_strangers(&Build::ours(), &NONCE).len() < bytes.len());
    }

    #[test]
    fn an_answer_is_one_with_our_secret_to_our_query_alone() {
        let agent = agent(ADDRS_MAX as u8);
        let bytes = agent.answer(&OURS, &NONCE);
        assert!(bytes.len() <= DATAGRAM_BYTES_MAX);
        assert_eq!(read_answer(&bytes, &OURS, &NONCE), Some(Answer::Ours(agent)));
        assert_eq!(read_answer(&bytes, &OTHER, &NONCE), None);
        assert_eq!(read_answer(&bytes, &OURS, &[4; NONCE_BYTES]), None, "an answer of before");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(read_answer(&changed, &OURS, &NONCE), None, "byte {at}");
            assert_eq!(read_answer(&bytes[..at], &OURS, &NONCE), None, "cut at {at}");
        }
        let bare = answer_to_strangers(&Build::ours(), &NONCE);
        let wanted = Some(Answer::Stranger(Build::ours()));
        assert_eq!(read_answer(&bare, &OURS, &NONCE), wanted);
    }

    #[test]
    fn a_version_that_would_do_something_to_a_terminal_is_none() {
        for version in ["1.0\u{1b}[2J", "1.0\n2.0", &"9".repeat(VERSION_BYTES_MAX + 1)] {
            let mut bytes = head(TO_STRANGERS, &NONCE);
            bytes.extend([6, 0, version.len() as u8]);
            bytes.extend(version.as_bytes());
            assert_eq!(read_answer(&bytes, &OURS, &NONCE), None, "{version:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_much(kind in 0_u8..4, rest in prop::collection::vec(any::<u8>(), 0..300)) {
            let bytes = [&head(kind, &NONCE)[..], &rest].concat();
            prop_assert!(!matches!(read_answer(&bytes, &OURS, &NONCE), Some(Answer::Ours(_))));
            prop_assert!(read_query(&bytes, &OURS).is_none_or(|it| !it.is_ours));
            prop_assert_eq!(read_answer(&rest, &OURS, &NONCE), None);
        }
    }
}

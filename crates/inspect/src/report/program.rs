//! Our own programs on a machine, with their answers to queries.

use jackalope_fleet::record::Recorded;
use serde::Serialize;

/// The kind of a program of ours.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgramKind {
    /// Serves HTTP and coordinates ranks.
    Serve,
    /// Starts and supervises the ranks of its machine.
    Agent,
    /// Computes a part of the model.
    Rank,
}

/// Answer of a server's HTTP port.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct HttpAnswer {
    /// URL that was queried.
    pub url: String,
    /// Status of `/health/live`; 0 if nothing answered, `None` if there was no tool to query it
    /// with.
    pub live: Option<u16>,
    /// Status of `/health/ready`; 0 and `None` as for `live`.
    pub ready: Option<u16>,
}

/// One running program of ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnProgram {
    /// Kind of the program.
    pub kind: ProgramKind,
    /// Process id of the program.
    pub pid: u32,
    /// Process id of the parent; 1 once the parent has ended, which does not make the program
    /// stale.
    pub parent_pid: u32,
    /// Resident memory of the program in bytes.
    pub resident_bytes: u64,
    /// Whether a signal has stopped the program (SIGSTOP).
    pub is_stopped: bool,
    /// Jackalope's folder of a server or an agent, where the system reports it.
    pub home: Option<String>,
    /// Whether the record in `home` names this process.
    pub is_recorded: bool,
    /// Model that the record in `home` names, if that is the record of this process.
    pub model: Option<String>,
    /// Answers of a server's ports.
    pub answers: Vec<HttpAnswer>,
    /// Whether a rank is connected to its coordinator, where the system reports connections.
    pub has_coordinator: Option<bool>,
}

impl OwnProgram {
    /// Parses the section `programs` of a report.
    pub(crate) fn parse_all(text: &str) -> Vec<OwnProgram> {
        let blocks = text.split("@program ").skip(1);
        blocks.filter_map(OwnProgram::parse).collect()
    }

    fn parse(block: &str) -> Option<OwnProgram> {
        let mut lines = block.lines();
        let mut words = lines.next()?.split_whitespace();
        let kind = match words.next()? {
            "serve" => ProgramKind::Serve,
            "agent" => ProgramKind::Agent,
            "rank" => ProgramKind::Rank,
            _ => return None,
        };
        let (pid, parent_pid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let resident_kib: u64 = words.next()?.parse().ok()?;
        let mut program = OwnProgram {
            kind,
            pid,
            parent_pid,
            resident_bytes: resident_kib * 1024,
            is_stopped: words.next()?.starts_with('T'),
            home: None,
            is_recorded: false,
            model: None,
            answers: Vec::new(),
            has_coordinator: None,
        };
        let mut began = "";
        for line in lines {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            match name {
                "home" => program.home = Some(value.to_owned()),
                "began" => began = value.trim(),
                "record" => program.take_record(value, began),
                "answer" => program.answers.extend(HttpAnswer::parse(value)),
                "coordinator" => program.has_coordinator = Some(value == "yes"),
                _ => {}
            }
        }
        Some(program)
    }

    fn take_record(&mut self, json: &str, began: &str) {
        let Ok(record) = serde_json::from_str::<Recorded>(json) else { return };
        self.is_recorded = record.pid == self.pid && record.began == began;
        let model = record.about["model"].as_str().filter(|_| self.is_recorded);
        self.model = model.map(str::to_owned);
    }

    /// Whether any port of the program answers over HTTP; `None` if none could be queried.
    pub fn is_alive(&self) -> Option<bool> {
        let known: Vec<u16> = self.answers.iter().filter_map(|it| it.live).collect();
        if known.is_empty() { None } else { Some(known.iter().any(|status| *status != 0)) }
    }

    /// Returns the first answer with status 200 of `/health/live`, which is that of the port that
    /// clients use.
    pub fn http(&self) -> Option<&HttpAnswer> {
        self.answers.iter().find(|it| it.live == Some(200))
    }
}

impl HttpAnswer {
    /// Parses `URL LIVE READY`.
    fn parse(text: &str) -> Option<HttpAnswer> {
        let mut words = text.split_whitespace();
        let url = words.next()?.to_owned();
        let mut status = || words.next()?.parse().ok();
        Some(HttpAnswer { url, live: status(), ready: status() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "@program serve 19 1 36604 Ssl\n\
         home /home/me/.jackalope\nbegan 4711\n\
         record {\"pid\":19,\"began\":\"4711\",\"version\":\"1\",\"about\":{\"model\":\"org/m\"}}\n\
         answer http://127.0.0.1:8080 200 503\n\
         @program agent 62 1 23492 Tsl\nhome /x y\nbegan 5\n\
         record {\"pid\":62,\"began\":\"4\",\"version\":\"1\",\"about\":{\"model\":\"m\"}}\n\
         @program rank 122 62 11712 Sl\ncoordinator no\n\
         @program serve 20 1 1 S\nanswer http://127.0.0.1:1 000 000\nanswer http://a:2 - -\n\
         @program chat 21 1 1 S\n";

    #[test]
    fn programs_are_read_with_what_they_answered() {
        let all = OwnProgram::parse_all(TEXT);
        let kinds: Vec<ProgramKind> = all.iter().map(|it| it.kind).collect();
        use ProgramKind::{Agent, Rank, Serve};
        assert_eq!(kinds, [Serve, Agent, Rank, Serve]);
        let [server, agent, rank, silent] = &all[..] else { panic!("four") };
        assert_eq!((server.pid, server.parent_pid, server.resident_bytes), (19, 1, 36604 << 10));
        assert!(server.is_recorded && server.is_alive() == Some(true));
        assert_eq!(server.model.as_deref(), Some("org/m"));
        assert_eq!(server.http().unwrap().ready, Some(503));
        assert!(agent.is_stopped && !agent.is_recorded && agent.model.is_none());
        assert_eq!(agent.home.as_deref(), Some("/x y"));
        assert_eq!((rank.has_coordinator, rank.is_alive()), (Some(false), None));
        assert_eq!(silent.is_alive(), Some(false));
        assert!(silent.http().is_none());
    }
}

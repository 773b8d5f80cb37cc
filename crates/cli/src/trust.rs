//! `jackalope trust`: manages the coordinators that may command this machine, and the machines it
//! knows.

use jackalope_console::output;
use jackalope_fleet::home::Home;
use jackalope_fleet::trust::{Pending, Role, TrustList, TrustStore, Trusted};
use jackalope_protocol::{Identity, PublicKey};
use serde_json::{Value, json};

use crate::args::trust::{TrustArgs, TrustCommand};
use crate::environment::Environment;

pub(crate) fn run(args: &TrustArgs, environment: &Environment) -> anyhow::Result<()> {
    let home = environment.home()?;
    let store = TrustStore::new(&home);
    match &args.command {
        TrustCommand::List { json } => list(&home, &store, *json),
        TrustCommand::Accept { machine } => {
            let accepted = store.update(|list| list.accept(machine))?;
            for Pending { role, name, key, .. } in accepted {
                output::line(match role {
                    Role::Coordinator => format!("{name} ({key}) may command this machine"),
                    Role::Machine => format!("{name} has the key {key} from now on"),
                })?;
            }
            Ok(())
        }
        TrustCommand::Revoke { machine } => {
            store.update(|list| list.revoke(machine))?;
            Ok(output::line(format_args!("{machine} is not trusted any more"))?)
        }
    }
}

fn list(home: &Home, store: &TrustStore, json: bool) -> anyhow::Result<()> {
    let (identity, list) = (home.identity()?, store.load()?);
    if json {
        Ok(output::line(object(&identity, &list))?)
    } else {
        Ok(output::line(text(&identity, &list))?)
    }
}

fn text(identity: &Identity, list: &TrustList) -> String {
    let mut lines = vec![format!("this machine   {}  {}", identity.public(), identity.name())];
    let row = |what: &str, it: &Trusted| format!("{what:<14} {}  {}", it.key, it.name);
    lines.extend(list.coordinators.iter().map(|it| row("coordinator", it)));
    lines.extend(list.machines.iter().map(|it| row("machine", it)));
    for it in &list.pending {
        let wanted = match it.role {
            Role::Coordinator => "wants to command this machine",
            Role::Machine => "has a new or changed key",
        };
        lines.push(format!("pending        {}  {} at {}: {wanted}", it.key, it.name, it.addr));
    }
    if let Some(first) = list.pending.first() {
        let key = first.key;
        lines.push(format!("hint: compare keys, then `jackalope trust accept {key}`"));
    }
    lines.join("\n")
}

fn object(identity: &Identity, list: &TrustList) -> Value {
    let key = |key: &PublicKey| json!({"fingerprint": key.fingerprint(), "key": key});
    let trusted = |it: &Trusted| {
        json!({
            "name": it.name, "fingerprint": it.key.fingerprint(), "key": it.key, "since": it.since,
        })
    };
    let pending = |it: &Pending| {
        json!({
            "role": it.role, "name": it.name, "addr": it.addr, "since": it.since,
            "fingerprint": it.key.fingerprint(), "key": it.key,
        })
    };
    json!({
        "this": key(&identity.public()),
        "coordinators": list.coordinators.iter().map(trusted).collect::<Vec<_>>(),
        "machines": list.machines.iter().map(trusted).collect::<Vec<_>>(),
        "pending": list.pending.iter().map(pending).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use jackalope_protocol::secure::Peer;

    use super::*;

    #[test]
    fn a_list_shows_everybody_with_their_keys_and_what_to_type() {
        let identity = Identity::generate("mac1").unwrap();
        let peer =
            |byte: u8, name: &str| Peer { key: PublicKey([byte; 32]), name: name.to_owned() };
        let mut list = TrustList::default();
        list.trust_coordinator(&peer(1, "studio"));
        list.pin("mac2", PublicKey([2; 32])).unwrap();
        list.note(Role::Coordinator, &peer(3, "laptop"), "10.0.0.9");
        let shown = text(&identity, &list);
        let print = |byte: u8| PublicKey([byte; 32]).fingerprint();
        let wanted = [
            format!("this machine   {}  mac1", identity.public()),
            format!("coordinator    {}  studio", print(1)),
            format!("machine        {}  mac2", print(2)),
            format!(
                "pending        {}  laptop at 10.0.0.9: wants to command this machine",
                print(3)
            ),
            format!("hint: compare keys, then `jackalope trust accept {}`", print(3)),
        ];
        assert_eq!(shown, wanted.join("\n"));
        let object = object(&identity, &list);
        assert_eq!(object["pending"][0]["role"], "coordinator");
        assert_eq!(object["machines"][0]["fingerprint"], print(2));
    }
}

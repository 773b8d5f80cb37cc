//! Tests of the units that are written, and of how service managers judge them.

use super::*;

fn service(manager: Manager, kind: ServiceKind, scope: Scope) -> Service {
    Service { manager, kind, scope, uid: 501 }
}

fn job(args: &[&str]) -> ServiceJob {
    ServiceJob {
        program: "/x/<y> 100%/jackalope".into(),
        args: args.iter().map(|it| (*it).to_owned()).collect(),
        home: "/Users/a & b/.jackalope".into(),
        dir: "/Users/a & b/50%".into(),
        account: None,
    }
}

fn key<'a>(plist: &'a plist::Value, key: &str) -> &'a plist::Value {
    plist.as_dictionary().unwrap().get(key).unwrap_or_else(|| panic!("no {key}"))
}

#[test]
fn a_property_list_says_what_was_asked_whatever_its_texts_hold() {
    let args = ["--model", "a <b> & \"c\"", "--port", "8080"];
    for kind in ServiceKind::ALL {
        let service = service(Manager::Launchd, kind, Scope::User);
        let text = service.text(&job(&args));
        let plist = plist::Value::from_reader_xml(text.as_bytes()).unwrap();
        let words = key(&plist, "ProgramArguments").as_array().unwrap();
        let words: Vec<&str> = words.iter().map(|it| it.as_string().unwrap()).collect();
        let fixed = ["/x/<y> 100%/jackalope", kind.subcommand(), "--verbose", "--detached"];
        assert_eq!(words, [&fixed[..], &args[..]].concat());
        assert_eq!(key(&plist, "Label").as_string(), Some(&*kind.label()));
        assert_eq!(key(&plist, "WorkingDirectory").as_string(), Some("/Users/a & b/50%"));
        assert_eq!(key(&plist, "ExitTimeOut").as_unsigned_integer(), Some(STOP_SECONDS));
        let log = key(&plist, "StandardErrorPath").as_string().unwrap();
        assert_eq!(log, format!("/Users/a & b/.jackalope/logs/{}", kind.log_name()));
        assert!(plist.as_dictionary().unwrap().get("UserName").is_none());
    }
    // A server that exits cleanly stays stopped; an agent is restarted.
    let keep_alive = |kind| {
        let text = service(Manager::Launchd, kind, Scope::User).text(&job(&[]));
        let plist = plist::Value::from_reader_xml(text.as_bytes()).unwrap();
        key(&plist, "KeepAlive").clone()
    };
    assert_eq!(key(&keep_alive(ServiceKind::Server), "SuccessfulExit").as_boolean(), Some(false));
    assert_eq!(keep_alive(ServiceKind::Agent).as_boolean(), Some(true));
}

#[test]
fn a_daemon_runs_as_the_account_that_was_named() {
    let daemon = service(Manager::Launchd, ServiceKind::Server, Scope::System);
    let job = ServiceJob { account: Some("llm".to_owned()), ..job(&[]) };
    let plist = plist::Value::from_reader_xml(daemon.text(&job).as_bytes()).unwrap();
    assert_eq!(key(&plist, "UserName").as_string(), Some("llm"));
    let path = daemon.path(Path::new("/Users/a"));
    assert_eq!(path, Path::new("/Library/LaunchDaemons/jackalope.server.plist"));
    assert_eq!(daemon.enable(&path)[0][..3], ["launchctl", "bootstrap", "system"]);
    let unit = service(Manager::Systemd, ServiceKind::Server, Scope::System);
    let text = unit.text(&job);
    assert!(text.contains("\nUser=llm\n") && text.contains("WantedBy=multi-user.target"), "{text}");
    assert!(text.contains("After=network-online.target"), "{text}");
    assert_eq!(
        unit.path(Path::new("/")),
        Path::new("/etc/systemd/system/jackalope.server.service")
    );
}

#[test]
fn a_unit_quotes_what_systemd_would_read_otherwise() {
    let unit = service(Manager::Systemd, ServiceKind::Server, Scope::User);
    let text = unit.text(&job(&["--model", "a b", "--alias", "x=$HOME\"\\", "--pin", "50%"]));
    let expected = "ExecStart=\"/x/<y> 100%%/jackalope\" serve --verbose --model \"a b\" --alias \
                    \"x=$$HOME\\\"\\\\\" --pin \"50%%\"\n";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("Environment=\"JACKALOPE_HOME=/Users/a & b/.jackalope\"\n"), "{text}");
    assert!(text.contains("\nWorkingDirectory=/Users/a & b/50%%\n"), "{text}");
    assert!(text.contains("Restart=on-failure\n"), "{text}");
    let agent = service(Manager::Systemd, ServiceKind::Agent, Scope::User).text(&job(&[]));
    assert!(agent.contains("Restart=always\n") && agent.contains(" agent --verbose\n"), "{agent}");
}

//! Hostfiles as text: what is read, what is refused and with which message, what is reported as
//! probably unintended, and that every output can be read again.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<Hostfile, HostfileErrors> {
    Hostfile::parse(text, Path::new("hosts.json"))
}

fn refusal(text: &str) -> String {
    parse(text).expect_err("it is not legal").to_string()
}

fn found(text: &str) -> Vec<String> {
    lint(&parse(text).unwrap()).iter().map(HostfileWarning::to_string).collect()
}

#[test]
fn the_four_formats_are_distinguished() {
    let cases = [
        (HostfileShape::Array, r#"[{"ssh": "mac1", "ips": ["10.0.0.1"], "rdma": [null]}]"#),
        (HostfileShape::Object, r#"{"hosts": [{"ssh": "mac1"}]}"#),
        (HostfileShape::Ring, r#"["10.0.0.1:5555", "mac2:5555"]"#),
        (HostfileShape::Ring, r#"[["10.0.0.1:5555", "10.0.1.1:5556"]]"#),
        (HostfileShape::Ring, r#"[["[fd00::1]:5555"], ["mac2.local:5555"]]"#),
        (HostfileShape::Matrix, r#"[[null, "rdma_en5"], [["rdma_en5"], null]]"#),
        (HostfileShape::Matrix, "[[null]]"),
    ];
    for (shape, text) in cases {
        let found = Hostfile::parse_shape(text, Path::new("x")).unwrap().1;
        assert_eq!(found, shape, "{text}");
    }
}

#[test]
fn an_object_says_everything() {
    let text = r#"{
        "backend": "jaccl",                       // RDMA
        "envs": ["MLX_METAL_FAST_SYNCH=1", "A=b=c", "EMPTY="],
        "hosts": [
            {"ssh": "127.0.0.1", "ips": ["10.0.0.1", "fd00::1"], "rdma": [null, ["rdma_en5", "rdma_en4"]]},
            {"ssh": "me@mac2", "ips": [], "rdma": [["rdma_en3", "rdma_en5"], null]}, /* the last */
        ],
    }"#;
    let file = parse(text).unwrap();
    assert_eq!(file.backend, Some(Backend::Jaccl));
    let env = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(file.envs, [env("MLX_METAL_FAST_SYNCH", "1"), env("A", "b=c"), env("EMPTY", "")]);
    assert!(file.hosts[0].is_local() && !file.hosts[1].is_local() && !file.is_local());
    assert_eq!(file.hosts[0].rdma[1], ["rdma_en5", "rdma_en4"]);
    assert_eq!(file.hosts[0].rdma_towards([0, 1, 1, 7]), ["rdma_en5", "rdma_en4"]);
    assert!(file.hosts[0].rdma_towards([0]).is_empty());
    assert_eq!(file.hosts[1].ssh, "me@mac2");
    assert_eq!(file.hosts[1].rdma, [vec!["rdma_en3".to_owned(), "rdma_en5".to_owned()], vec![]]);
}

#[test]
fn jaccl_over_a_ring_is_jaccl_with_its_variable() {
    let text = r#"{"backend": "jaccl-ring", "hosts": [{"ssh": "a", "rdma": [null]}]}"#;
    let file = parse(text).unwrap();
    assert_eq!(file.backend, Some(Backend::Jaccl));
    assert_eq!(file.envs, [("MLX_JACCL_RING".to_owned(), "1".to_owned())]);
}

#[test]
fn addresses_of_a_ring_are_addresses_of_its_hosts() {
    let file = parse(r#"[["10.0.0.1:5555", "10.0.0.1:5556"], ["mac2:1", "[fd00::1]:65535"]]"#);
    let hosts = file.unwrap().hosts;
    assert_eq!(hosts[0].ips, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(hosts[1].ips, ["fd00::1".parse::<IpAddr>().unwrap()]);
    assert_eq!(hosts[1].listen[0], ListenAddr { host: "mac2".to_owned(), port: 1 });
}

#[test]
fn ranks_with_the_same_only_address_are_on_one_machine() {
    let hosts =
        parse(r#"["127.0.0.1:1", "127.0.0.1:2", "10.0.0.1:1", "10.0.0.1:2"]"#).unwrap().hosts;
    assert!(hosts[0].is_same_machine(&hosts[1]) && hosts[2].is_same_machine(&hosts[3]));
    assert!(!hosts[0].is_same_machine(&hosts[2]));
    let unknown = Host::default();
    assert!(!unknown.is_same_machine(&Host::default()), "nothing is known of either");
}

/// Files, each with the errors that are reported for it.
const REFUSED: &[(&str, &str)] = &[
    ("", "1:1: expected a value, found the end of the file"),
    ("[1 2]", "1:4: expected `,` or `]`, found '2'"),
    ("7", "1:1: expected a list or an object, found the number 7"),
    ("[]", "1:1: there are no hosts"),
    ("{}", "1:1: the key \"hosts\" is missing"),
    ("{\"hosts\": 1}", "1:11: hosts: expected a list of hosts, found the number 1"),
    ("[{\"ips\": []}]", "1:2: [0]: the key \"ssh\" is missing"),
    ("[{\"ssh\": \"\"}]", "1:10: [0].ssh: the name for ssh is empty"),
    ("[{\"ssh\": \"-oA\"}]", "1:10: [0].ssh: \"-oA\" is not a valid name for ssh"),
    ("[{\"ssh\": \"a\", \"ssh\": \"b\"}]", "1:15: [0]: the key \"ssh\" occurs twice"),
    (
        "[{\"ssh\": \"a\", \"ips\": \"10.0.0.1\"}]",
        "1:22: [0].ips: expected a list of strings, found the string \"10.0.0.1\"",
    ),
    (
        "[{\"ssh\": \"a\", \"ips\": [\"10.0.0\"]}]",
        "1:23: [0].ips[0]: \"10.0.0\" is not a valid IP address",
    ),
    ("[{\"ssh\": \"10.0.0.300\"}]", "1:10: [0].ssh: \"10.0.0.300\" is not a valid IP address"),
    ("[{\"ssh\": \"me@10.0.0\"}]", "1:10: [0].ssh: \"10.0.0\" is not a valid IP address"),
    ("[{\"ssh\": \"me@\"}]", "1:10: [0].ssh: \"\" is not a valid name of a machine"),
    (
        "[{\"ssh\": \"mac2..local\"}]",
        "1:10: [0].ssh: \"mac2..local\" is not a valid name of a machine",
    ),
    ("[{\"ssh\": \".local.\"}]", "1:10: [0].ssh: \".local.\" is not a valid name of a machine"),
    ("[\"10.0.0.300:5555\", \"b:1\"]", "1:2: [0]: \"10.0.0.300\" is not a valid IP address"),
    (
        "[{\"ssh\": \"a\", \"ips\": [\"::1\", \"0::1\"]}]",
        "1:30: [0].ips[1]: ::1 occurs twice in this list",
    ),
    ("[{\"ssh\": \"é\", \"adresses\": []}]", "1:15: [0]: unknown key \"adresses\""),
    (
        "{\"backend\": \"mpi\", \"hosts\": [{\"ssh\": \"a\"}]}",
        "1:13: backend: unknown backend \"mpi\"",
    ),
    ("{\"envs\": [\"A\"], \"hosts\": [{\"ssh\": \"a\"}]}", "1:11: envs[0]: \"A\" has no `=`"),
    (
        "{\"envs\": [\"1A=\"], \"hosts\": [{\"ssh\": \"a\"}]}",
        "1:11: envs[0]: \"1A\" cannot name a variable",
    ),
    ("[{\"ssh\": \"a\", \"rdma\": [null, \"x\"]}]", "1:23: [0].rdma: 2 devices for 1 host"),
    (
        "[{\"ssh\": \"a\", \"rdma\": [\"x\"]}]",
        "1:24: [0].rdma[0]: a device towards itself: \"x\", expected null",
    ),
    ("[{\"ssh\": \"a\", \"rdma\": [\"\"]}]", "1:24: [0].rdma[0]: \"\" is not a valid device"),
    (
        "[{\"ssh\": \"a\", \"ips\": [\"10.0.0.1\"], \"rdma\": [null, \"x\"]},\n {\"ssh\": \"b\"}]",
        "2:2: [1]: no devices are named here, but other hosts have them",
    ),
    (
        "{\"backend\": \"jaccl\", \"hosts\": [{\"ssh\": \"a\"}]}",
        "1:32: hosts[0]: no devices are named here, but jaccl needs them",
    ),
    (
        "[{\"ssh\": \"a\"}, {\"ssh\": \"b\"}]",
        "1:2: [0]: rank 0 has no address that the other machines can reach",
    ),
    (
        "[{\"ssh\": \"127.0.0.1\", \"ips\": [\"127.0.0.1\"]}, {\"ssh\": \"b\"}]",
        "1:2: [0]: rank 0 has no address that the other machines can reach",
    ),
    ("[\"10.0.0.1:5555\", \"10.0.0.1:5555\"]", "1:19: [1]: 10.0.0.1:5555 is taken by [0]"),
    ("[[\"a:1\", \"a:2\"], [\"b:1\"]]", "1:18: [1]: 1 connection, but 2 at [0]"),
    ("[\"10.0.0.1:0\"]", "1:2: [0]: 0 is not a valid port"),
    ("[\"10.0.0.1:65536\"]", "1:2: [0]: 65536 is not a valid port"),
    ("[\"10.0.0.1:+80\"]", "1:2: [0]: +80 is not a valid port"),
    ("[\"10.0.0.1\"]", "1:2: [0]: \"10.0.0.1\" is not a valid address with a port"),
    ("[\"fd00::1:80\"]", "1:2: [0]: \"fd00::1:80\" is not a valid address with a port"),
    ("[[null, \"x\"], [\"y\", null], [null]]", "1:2: [0]: 2 devices for 3 hosts"),
    (
        "[[null, \"x\"],\n [null, null]]",
        "2:3: [1][0]: 0 of 1 device towards rank 0: the way back is at [0][1]",
    ),
    (
        "[[null, [\"x\", \"y\"]],\n [\"z\", null]]",
        "2:3: [1][0]: 1 of 2 devices towards rank 0: the way back is at [0][1]",
    ),
];

#[test]
fn errors_are_reported_with_their_place_and_a_hint() {
    for (text, wanted) in REFUSED {
        let refusal = refusal(text);
        assert!(refusal.starts_with(&format!("hosts.json:{wanted}\nhint: ")), "{text}\n{refusal}");
        assert!(refusal.lines().all(|line| line != "hint: "), "{refusal}");
    }
}

#[test]
fn several_faults_are_reported_at_once_in_the_order_of_the_text() {
    let text = "{\n \"backend\": \"mpi\",\n \"host\": [],\n \"hosts\": [\n  {\"ssh\": \"\", \"ips\": [\"x\"]}\n ]\n}";
    let errors = parse(text).unwrap_err().errors;
    let places: Vec<_> = errors.iter().map(|it| (it.line, it.column)).collect();
    assert_eq!(places, [(2, 13), (3, 2), (5, 11), (5, 23)]);
    let matrix = r#"[["a", "b", null], [null, null, "c"], ["d", "e", null]]"#;
    assert_eq!(parse(matrix).unwrap_err().errors.len(), 3, "{}", refusal(matrix));
}

#[test]
fn unknown_keys_are_answered_with_the_ones_that_were_meant() {
    for (found, meant) in
        [("hostname", "ssh"), ("shh", "ssh"), ("ip", "ips"), ("RDMA", "rdma"), ("devices", "rdma")]
    {
        let refusal = refusal(&format!("[{{\"ssh\": \"a\", {found:?}: []}}]"));
        assert!(refusal.ends_with(&format!("hint: write {meant:?}")), "{refusal}");
    }
    let refusal = refusal("[{\"ssh\": \"a\", \"flavour\": 1}]");
    assert!(refusal.ends_with("hint: known keys: ssh, ips, rdma"), "{refusal}");
}

#[test]
fn large_files_are_refused_and_many_faults_cut_short() {
    assert!(refusal(&" ".repeat(TEXT_BYTES_MAX + 1)).contains("a hostfile at most"));
    let many = format!("{{\"envs\": [{}], \"hosts\": []}}", "\"A\",".repeat(10_000));
    assert_eq!(parse(&many).unwrap_err().errors.len(), ERRORS_MAX);
    assert!(
        refusal(&format!("[{}]", "{\"ssh\":\"a\"},".repeat(65))).contains("65 hosts, at most 64")
    );
}

/// Creates a device matrix in which these pairs are linked.
fn jaccl(num_hosts: usize, linked: &[(usize, usize)]) -> Hostfile {
    let device = |a: usize, b: usize| {
        let is_linked = linked.contains(&(a, b)) || linked.contains(&(b, a));
        if is_linked { vec![format!("rdma_en{}", 3 + b)] } else { Vec::new() }
    };
    let hosts = (0..num_hosts).map(|a| Host {
        ssh: format!("mac{a}"),
        ips: vec![IpAddr::from([10, 0, 0, a as u8 + 1])],
        rdma: (0..num_hosts).map(|b| device(a, b)).collect(),
        listen: Vec::new(),
    });
    Hostfile { backend: Some(Backend::Jaccl), envs: Vec::new(), hosts: hosts.collect() }
}

#[test]
fn a_mesh_with_gaps_is_reported_with_the_ring_or_chain_that_exists() {
    let texts = |file: &Hostfile| -> Vec<String> {
        lint(file).iter().map(HostfileWarning::to_string).collect()
    };
    assert!(texts(&jaccl(3, &[(0, 1), (0, 2), (1, 2)])).is_empty());
    let ring = texts(&jaccl(4, &[(0, 2), (2, 1), (1, 3), (3, 0)]));
    assert_eq!(ring[0], "no cable between rank 0 (mac0) and rank 1 (mac1)");
    assert_eq!(ring[1], "no cable between rank 2 (mac2) and rank 3 (mac3)");
    assert_eq!(ring[2], "the mesh is incomplete; the cables make a ring: 0 – 2 – 1 – 3");
    let chain = texts(&jaccl(3, &[(0, 1), (0, 2)]));
    assert_eq!(chain[1], "the mesh is incomplete; the cables make a chain: 1 – 0 – 2");
    let apart = texts(&jaccl(4, &[(0, 1), (2, 3)]));
    assert_eq!(apart.last().unwrap(), "no cables lead from rank 0 to ranks 2, 3");
    let all: Vec<_> = (0..5).flat_map(|a| (a + 1..5).map(move |b| (a, b))).collect();
    let five = texts(&jaccl(5, &all));
    let wanted = "a mesh of 5 machines needs 4 RDMA ports on each, a Thunderbolt 5 Mac has 3";
    assert_eq!(five, [wanted]);
    let mut as_ring = jaccl(4, &[(0, 1), (1, 2), (2, 3), (3, 0)]);
    as_ring.envs.push(("MLX_JACCL_RING".to_owned(), "1".to_owned()));
    let wanted = "the mesh is incomplete; the cables make a ring: 0 – 1 – 2 – 3";
    assert_eq!(texts(&as_ring), [wanted]);
}

#[test]
fn what_will_disappoint_is_found() {
    let cases: &[(&str, &str)] = &[
        (
            r#"[[null, "rdma_en2"], ["rdma_en3", null]]"#,
            "rank 0 uses rdma_en2 towards rank 1: on a Mac Studio the port next to Ethernet does no RDMA",
        ),
        (
            r#"[{"ssh": "a", "ips": ["192.168.0.5"]}, {"ssh": "b", "ips": ["192.168.0.6"]}]"#,
            "192.168.0.5 (rank 0) and 192.168.0.6 (rank 1) look like the ends of a cable, in a subnet that home networks use",
        ),
        (
            r#"[{"ssh": "127.0.0.1"}, {"ssh": "localhost"}]"#,
            "ranks 0, 1 run on one machine, 127.0.0.1",
        ),
        (
            r#"[{"ssh": "me@Mac1", "ips": ["10.0.0.1"]}, {"ssh": "mac1"}]"#,
            "ranks 0, 1 run on one machine, me@Mac1",
        ),
        (
            r#"[{"ssh": "a", "ips": ["10.0.0.1"]}, {"ssh": "b", "ips": ["10.0.0.1"]}]"#,
            "ranks 0, 1 have different names and one address, 10.0.0.1",
        ),
        (
            r#"[{"ssh": "a", "ips": ["10.0.0.1"]}, {"ssh": "b", "ips": ["fd00::1"]}]"#,
            "ranks 0 and 1 have no address of the same family",
        ),
        (
            r#"[{"ssh": "a", "ips": ["10.0.0.1"]}, {"ssh": "b", "ips": ["127.0.0.1"]}]"#,
            "rank 1 names 127.0.0.1, which other machines cannot reach",
        ),
        (
            r#"{"backend": "ring", "hosts": [{"ssh": "a", "ips": ["fd00::1"]}]}"#,
            "rank 0 has no IPv4 address, and ring knows no other",
        ),
        (
            r#"{"backend": "ring", "hosts": [{"ssh": "a", "ips": ["10.0.0.1"]}, {"ssh": "b"}]}"#,
            "rank 1 has no address for the ring",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(found(text), [*wanted], "{text}");
    }
    let quiet = r#"[{"ssh": "a", "ips": ["192.168.1.10"]}, {"ssh": "b", "ips": ["192.168.1.11"]}]"#;
    assert_eq!(found(quiet), Vec::<String>::new());
}

#[test]
fn a_ring_is_numbered_as_mlx_numbers_it() {
    let text = r#"[{"ssh": "a", "ips": ["10.0.0.1", "10.0.0.5"]}, {"ssh": "b", "ips": ["10.0.0.2", "10.0.0.6"]}]"#;
    let ports = RingPorts { first: 40_000, connections: 2 };
    let ring = convert(&parse(text).unwrap(), HostfileShape::Ring, Some(ports)).unwrap();
    let wanted = r#"[
  ["10.0.0.1:40000", "10.0.0.1:40001", "10.0.0.5:40002", "10.0.0.5:40003"],
  ["10.0.0.2:40004", "10.0.0.2:40005", "10.0.0.6:40006", "10.0.0.6:40007"]
]
"#;
    assert_eq!(ring.text, wanted);
    assert_eq!(ring.lost, [Loss::Names]);
    let here = parse(r#"[{"ssh": "127.0.0.1"}, {"ssh": "127.0.0.1"}]"#).unwrap();
    let ring = convert(&here, HostfileShape::Ring, None).unwrap();
    assert_eq!(ring.text, "[\n  [\"127.0.0.1:32323\"],\n  [\"127.0.0.1:32324\"]\n]\n");
}

#[test]
fn what_a_shape_needs_and_the_file_lacks_is_an_error() {
    let convert = |text: &str, shape, ports| convert(&parse(text).unwrap(), shape, ports);
    let refusal = |text: &str, shape, ports| convert(text, shape, ports).unwrap_err().to_string();
    let matrix = r#"[[null, "a"], ["b", null]]"#;
    assert_eq!(
        refusal(matrix, HostfileShape::Array, None),
        "rank 0 has neither a name nor an address"
    );
    assert_eq!(refusal(matrix, HostfileShape::Ring, None), "rank 0 (?) has no address");
    let hosts =
        r#"[{"ssh": "a", "ips": ["10.0.0.1", "10.1.0.1"]}, {"ssh": "b", "ips": ["10.0.0.2"]}]"#;
    assert_eq!(refusal(hosts, HostfileShape::Ring, None), "rank 1 (b) has 1 address, rank 0 has 2");
    assert_eq!(refusal(hosts, HostfileShape::Matrix, None), "rank 0 (a) has no RDMA devices");
    let one = r#"[{"ssh": "a", "ips": ["10.0.0.1"]}]"#;
    let ports = |first, connections| Some(RingPorts { first, connections });
    let wanted = "2 ports from 65535 on would exceed 65535";
    assert_eq!(refusal(one, HostfileShape::Ring, ports(65_535, 2)), wanted);
    assert!(convert(one, HostfileShape::Ring, ports(65_535, 1)).is_ok());
    let names = r#"["mac1:5555", "mac2:5555"]"#;
    let illegal = refusal(names, HostfileShape::Array, None);
    assert!(
        illegal.contains("rank 0 has no address that the other machines can reach"),
        "{illegal}"
    );
}

fn ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (1_u8..=223, any::<[u8; 3]>()).prop_map(|(a, [b, c, d])| IpAddr::from([a, b, c, d])),
        any::<[u16; 8]>().prop_map(IpAddr::from),
    ]
}

/// Lists of addresses, without repetition within each list.
fn host_ips() -> impl Strategy<Value = Vec<IpAddr>> {
    prop::collection::btree_set(ip(), 1..4).prop_map(|ips| ips.into_iter().collect())
}

/// Device matrices with the same number of names at both ends of each cable.
fn matrix(num_hosts: usize) -> impl Strategy<Value = Vec<Vec<Vec<String>>>> {
    let counts = prop::collection::vec(0_usize..3, num_hosts * num_hosts);
    let name = "rdma_en[0-9]{1,2}";
    (counts, prop::collection::vec(name, num_hosts * num_hosts * 2)).prop_map(
        move |(counts, names)| {
            let cell = |a: usize, b: usize| {
                let count = if a == b { 0 } else { counts[a.min(b) * num_hosts + a.max(b)] };
                let first = (a * num_hosts + b) * 2;
                names[first..first + count].to_vec()
            };
            (0..num_hosts).map(|a| (0..num_hosts).map(|b| cell(a, b)).collect()).collect()
        },
    )
}

/// Hostfiles that use everything the object form can contain.
fn full() -> impl Strategy<Value = Hostfile> {
    (1_usize..5).prop_flat_map(|num_hosts| {
        let name = "([a-z]{1,5}@)?[A-Za-z0-9é_]{1,4}(\\.[A-Za-zé_]{1,4}){0,2}";
        let names = prop::collection::vec(name, num_hosts);
        let ips = prop::collection::vec(host_ips(), num_hosts);
        let backend = prop::option::of(prop::sample::select(Backend::ALL.to_vec()));
        let envs = prop::collection::vec(("[A-Za-z_][A-Za-z0-9_]{0,6}", any::<String>()), 0..3);
        (names, ips, matrix(num_hosts), backend, envs).prop_map(
            |(names, ips, rdma, backend, envs)| {
                let hosts = names.into_iter().zip(ips).zip(rdma);
                let hosts = hosts
                    .map(|((ssh, ips), rdma)| Host { ssh, ips, rdma, listen: Vec::new() })
                    .collect();
                Hostfile { backend, envs, hosts }
            },
        )
    })
}

/// Returns whether a machine has an address that others can reach: neither loopback nor
/// unspecified.
fn is_reachable(file: &Hostfile) -> bool {
    file.hosts[0].ips.iter().any(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

proptest! {
    #[test]
    fn an_object_is_read_as_it_was_written(file in full().prop_filter("reachable", is_reachable)) {
        let written = convert(&file, HostfileShape::Object, None).unwrap();
        prop_assert_eq!(&written.lost, &[]);
        prop_assert_eq!(parse(&written.text).unwrap(), file);
    }

    #[test]
    fn other_shapes_lose_what_they_say_they_lose(
        file in full().prop_filter("reachable", is_reachable), shape in prop::sample::select(HostfileShape::ALL.to_vec()),
    ) {
        let Ok(written) = convert(&file, shape, None) else {
            prop_assert_eq!(shape, HostfileShape::Ring, "only a ring needs more than an object says");
            return Ok(());
        };
        let (read, found) = Hostfile::parse_shape(&written.text, Path::new("x")).unwrap();
        prop_assert_eq!(found, shape);
        let mut wanted = file;
        for loss in &written.lost {
            for host in &mut wanted.hosts {
                match loss {
                    Loss::Names => host.ssh.clear(),
                    Loss::Addresses => host.ips.clear(),
                    Loss::Devices => host.rdma.clear(),
                    Loss::Backend | Loss::Envs | Loss::Ports => {}
                }
            }
            match loss {
                Loss::Backend => wanted.backend = None,
                Loss::Envs => wanted.envs.clear(),
                _ => {}
            }
        }
        let without_ports = Hostfile {
            hosts: read.hosts.iter().map(|host| Host { listen: Vec::new(), ..host.clone() }).collect(),
            ..read.clone()
        };
        prop_assert_eq!(without_ports, wanted);
        // Writing it again in the same shape changes nothing.
        prop_assert_eq!(convert(&read, shape, None).unwrap().text, written.text);
    }

    #[test]
    fn any_text_is_a_hostfile_or_has_errors_with_places(
        text in "[\\[\\]{}\",:/]{0,6}|([\\[\\]{}\n,: ]|\"ssh\"|\"hosts\"|\"a:1\"|null|\"rdma\"|\"ips\"){0,14}",
    ) {
        match parse(&text) {
            Ok(file) => { lint(&file); }
            Err(errors) => {
                prop_assert!(!errors.errors.is_empty());
                let places: Vec<_> = errors.errors.iter().map(|it| (it.line, it.column)).collect();
                prop_assert!(places.is_sorted());
            }
        }
    }
}

/// mDNS tools print names with a dot at the end, and everything else prints them without.
#[test]
fn the_dot_at_the_end_of_a_name_is_left_out() {
    let file =
        parse(r#"[{"ssh": "me@mac1.local.", "ips": ["10.0.0.1"]}, {"ssh": "mac2."}]"#).unwrap();
    let names: Vec<&str> = file.hosts.iter().map(|host| host.ssh.as_str()).collect();
    assert_eq!(names, ["me@mac1.local", "mac2"]);
    let file = parse(r#"["mac1.local.:5555", "10.0.0.2.:5555"]"#).unwrap();
    let names: Vec<&str> = file.hosts.iter().map(|host| host.listen[0].host.as_str()).collect();
    assert_eq!(names, ["mac1.local", "10.0.0.2"]);
    assert_eq!(file.hosts[1].ips, ["10.0.0.2".parse::<IpAddr>().unwrap()]);
}

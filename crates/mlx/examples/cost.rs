//! What the binding costs: `cargo run --release -p jackalope-mlx --example cost`.
//!
//! A graph node, a cloned handle, an evaluation, a custom kernel; then a 4 KB `all_sum` between two
//! ranks at the transport, the same through an evaluation, and several in one evaluation (as in a
//! forward pass), alternating in one run.
#![expect(clippy::print_stdout, reason = "an example speaks to people")]

use std::hint::black_box;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use jackalope_mlx::{Array, Dtype, Group, custom, eval};
use jackalope_transport::{self as transport, GroupConfig, Listener};

const ELEMENTS: i32 = 1024;

/// Iterations of each loop over nodes, and of each block of collectives.
const NODES: u32 = 100_000;
const COLLECTIVES: usize = 2_000;

/// Collectives in one evaluation of the last loop.
const CHAIN: usize = 20;

fn main() {
    nodes();
    collectives();
}

fn nodes() {
    let x = Array::full(&[1, 8, 64], 1.0, Dtype::F32);
    x.eval().expect("a constant evaluates");
    each("reshape node", NODES, || drop(black_box(x.reshape(&[1, 8, 8, 8]))));
    each("add node", NODES, || drop(black_box(x.add(&x))));
    each("x * number", NODES, || drop(black_box(&x * 2.0)));
    each("clone", NODES, || drop(black_box(x.clone())));
    each("eval of one add", NODES / 10, || x.add(&x).eval().expect("it evaluates"));
    each("eval of one custom kernel", NODES / 10, || {
        let output = [x.array_type()];
        let node = custom(&[&x], &output, "copy", |inputs, outputs| {
            outputs[0].bytes_mut().copy_from_slice(inputs[0].bytes());
        });
        node[0].eval().expect("it evaluates");
    });
}

fn each(name: &str, times: u32, mut work: impl FnMut()) {
    let started = Instant::now();
    for _ in 0..times {
        work();
    }
    println!("{name:<28} {:>10.3?}", started.elapsed() / times);
}

fn collectives() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let doors = [0, 1].map(|_| Listener::bind(any).expect("loopback has free ports"));
    let peers: Vec<SocketAddr> = doors.iter().map(Listener::local_addr).collect();
    thread::scope(|scope| {
        for (rank, door) in doors.into_iter().enumerate() {
            let peers = peers.clone();
            scope.spawn(move || rank_loop(rank, &door, &peers));
        }
    });
}

fn rank_loop(rank: usize, door: &Listener, peers: &[SocketAddr]) {
    let join = |epoch| {
        let config = GroupConfig::new(rank, peers.to_vec(), epoch, [0; 32]);
        transport::Group::join(door, config).expect("both ranks join")
    };
    let (mut bare, group) = (join(1), Group::native(join(2)));
    let x = Array::full(&[ELEMENTS], 1.0, Dtype::F32);
    x.eval().expect("a constant evaluates");
    let mut bytes = vec![0_u8; x.nbytes()];
    let (mut direct, mut through, mut chained) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..4 {
        for _ in 0..COLLECTIVES {
            let started = Instant::now();
            bare.all_sum(&mut bytes, transport::Dtype::F32).expect("the peer is there");
            direct.push(started.elapsed());
        }
        for _ in 0..COLLECTIVES {
            let started = Instant::now();
            eval(&[&group.all_sum(&x)]).expect("the peer is there");
            through.push(started.elapsed());
        }
        for _ in 0..COLLECTIVES / CHAIN {
            let started = Instant::now();
            let last = (0..CHAIN).fold(x.clone(), |x, _| group.all_sum(&x));
            eval(&[&last]).expect("the peer is there");
            chained.push(started.elapsed() / u32::try_from(CHAIN).expect("a small number"));
        }
    }
    if rank == 0 {
        report("all_sum 4 KB, transport", direct);
        report("all_sum 4 KB, eval", through);
        report("all_sum 4 KB, 20 in one eval", chained);
    }
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[times.len() * percent / 100];
    println!("{name:<28} {:>10.3?} median {:>10.3?} p99", at(50), at(99));
}

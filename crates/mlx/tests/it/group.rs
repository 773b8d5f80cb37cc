//! Groups: the native one between threads, the stock ones between processes.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Stdio};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use jackalope_mlx::{
    Array, ArrayType, Backend, Buffer, BufferMut, Dtype, Error, Group, custom, eval, memory,
};
use jackalope_transport::{self as transport, GroupConfig, Listener};

use crate::{expecting_failures, panic_of};

/// One rank of a test: its listener, and the addresses of all ranks.
struct Seat {
    rank: usize,
    listener: Listener,
    peers: Vec<SocketAddr>,
}

/// Barrier at which ranks wait for each other outside of the group. A rank that panics never arrives,
/// so waiting has a time limit.
#[derive(Default)]
struct Meeting {
    present: Mutex<usize>,
    changed: Condvar,
}

impl Meeting {
    fn wait_for(&self, num_ranks: usize) {
        let mut present = self.present.lock().unwrap();
        *present += 1;
        self.changed.notify_all();
        let patience = Duration::from_secs(60);
        let missing = |present: &mut usize| *present < num_ranks;
        let waited = self.changed.wait_timeout_while(present, patience, missing).unwrap();
        assert!(!waited.1.timed_out(), "a rank did not come");
    }
}

impl Seat {
    fn join(&self, epoch: u64) -> Group {
        let config = GroupConfig::new(self.rank, self.peers.clone(), epoch, [7; 32]);
        Group::native(transport::Group::join(&self.listener, config).unwrap())
    }
}

/// Runs `rank` on as many threads as the group has ranks.
fn with_ranks(size: usize, rank: impl Fn(Seat) + Sync) {
    let _turn = expecting_failures();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listeners: Vec<Listener> = (0..size).map(|_| Listener::bind(any).unwrap()).collect();
    let peers: Vec<SocketAddr> = listeners.iter().map(Listener::local_addr).collect();
    thread::scope(|scope| {
        for (idx, listener) in listeners.into_iter().enumerate() {
            let (peers, rank) = (peers.clone(), &rank);
            scope.spawn(move || rank(Seat { rank: idx, listener, peers }));
        }
    });
}

#[expect(clippy::cast_precision_loss, reason = "ranks are small")]
fn number(rank: usize) -> f32 {
    rank as f32
}

#[test]
fn a_sum_over_the_ranks_is_a_node_like_any_other() {
    for size in [2, 3] {
        with_ranks(size, |seat| {
            let group = seat.join(1);
            assert_eq!((group.rank(), group.size()), (seat.rank, size));
            // A view as input, and work before and after, all in one evaluation.
            let x = Array::arange(6, Dtype::F32).reshape(&[2, 3]).transpose(&[1, 0]);
            let part = &x * (number(seat.rank) + 1.0);
            let total = group.all_sum(&part) + 0.5;
            let twice = group.all_sum(&total);
            let weight = number(size * (size + 1) / 2);
            let expected = [0., 3., 1., 4., 2., 5.].map(|v| v * weight + 0.5);
            assert_eq!(total.shape(), [3, 2]);
            eval(&[&twice]).unwrap();
            assert_eq!(total.to_vec::<f32>().unwrap(), expected);
            assert_eq!(twice.to_vec::<f32>().unwrap(), expected.map(|v| v * number(size)));
            // The input is still what it was.
            assert_eq!(part.to_vec::<f32>().unwrap()[1], 3.0 * (number(seat.rank) + 1.0));
            assert!(group.stats().unwrap().operations >= 2);
            assert!(group.failure().is_none());
        });
    }
}

#[test]
fn a_sum_lies_in_the_memory_of_its_argument() {
    const NUM_ELEMENTS: i32 = 4 << 20;
    let meetings = [Meeting::default(), Meeting::default()];
    let held_before = Mutex::new(0);
    with_ranks(2, |seat| {
        let group = seat.join(1);
        let x = Array::full(&[NUM_ELEMENTS], 1.0, Dtype::F32);
        x.eval().unwrap();
        meetings[0].wait_for(2);
        if seat.rank == 0 {
            memory::reset_peak();
            *held_before.lock().unwrap() = memory::active_bytes();
        }
        meetings[1].wait_for(2);
        // Nothing else holds the product, which the group sends.
        let total = group.all_sum(&(&x + number(seat.rank)));
        total.eval().unwrap();
        assert_eq!(total.slice_axis(0, 0, 1).to_vec::<f32>().unwrap(), [3.0]);
    });
    let taken = memory::peak_bytes() - held_before.into_inner().unwrap();
    let products = 2 * NUM_ELEMENTS as usize * size_of::<f32>();
    // Tests that run at the same time take little.
    assert!(taken < products + products / 4, "{taken} bytes for {products} bytes of products");
}

#[test]
fn kernels_sum_over_the_ranks_in_the_order_of_the_groups_nodes() {
    with_ranks(3, |seat| {
        let group = seat.join(1);
        let own = Array::full(&[2, 2], number(seat.rank) + 1.0, Dtype::F64);
        let sums = group.kernel_sums().unwrap();
        let kernel = move |inputs: &[Buffer<'_>], outputs: &mut [BufferMut<'_>]| {
            let mut values = inputs[0].values::<f64>().to_vec();
            sums.add_up(&mut values);
            values.iter_mut().for_each(|value| *value += 0.5);
            sums.add_up(&mut values);
            outputs[0].values_mut::<f64>().copy_from_slice(&values);
        };
        let before = group.all_sum(&own);
        let out = [ArrayType { shape: vec![2, 2], dtype: Dtype::F64 }];
        let inside = custom(&[&before], &out, "sums", kernel).remove(0);
        let after = group.all_sum(&inside);
        assert_eq!(after.to_vec::<f64>().unwrap(), [((6.0 * 3.0) + 0.5) * 3.0 * 3.0; 4]);
        assert_eq!(group.stats().unwrap().operations, 4);
    });
}

#[test]
fn a_kernel_whose_peer_is_lost_fails_with_the_groups_error() {
    with_ranks(2, |seat| {
        let group = seat.join(1);
        if seat.rank == 1 {
            return;
        }
        let sums = group.kernel_sums().unwrap();
        let kernel = move |_: &[Buffer<'_>], outputs: &mut [BufferMut<'_>]| {
            sums.add_up(outputs[0].values_mut::<f64>());
        };
        let out = [ArrayType { shape: vec![3], dtype: Dtype::F64 }];
        let err = custom(&[], &out, "sums", kernel)[0].eval().unwrap_err().to_string();
        assert!(err.contains("sums: ") && !err.contains("panicked"), "{err}");
        let failure = group.failure().expect("the peer is gone").to_string();
        assert!(err.contains(&failure), "{err}, not {failure}");
    });
}

#[test]
fn every_element_type_of_a_group_adds_up() {
    with_ranks(2, |seat| {
        let group = seat.join(1);
        let values = Array::from_slice(&[1.0_f32, 2.0, 300.0], &[3]) * (number(seat.rank) + 1.0);
        let sum = |dtype| group.all_sum(&values.astype(dtype));
        assert_eq!(sum(Dtype::F32).to_vec::<f32>().unwrap(), [3.0, 6.0, 900.0]);
        assert_eq!(sum(Dtype::F64).to_vec::<f64>().unwrap(), [3.0, 6.0, 900.0]);
        assert_eq!(sum(Dtype::F16).to_vec::<f16>().unwrap(), [3.0, 6.0, 900.0].map(f16::from_f32));
        let bf16s = sum(Dtype::Bf16).to_vec::<bf16>().unwrap();
        assert_eq!(bf16s, [3.0, 6.0, 900.0].map(bf16::from_f32));
        assert_eq!(sum(Dtype::I32).to_vec::<i32>().unwrap(), [3, 6, 900]);
        assert_eq!(sum(Dtype::U32).to_vec::<u32>().unwrap(), [3, 6, 900]);
        let (message, _) = panic_of(|| drop(group.all_sum(&values.astype(Dtype::I64))));
        assert_eq!(message, "all_sum: groups do not carry I64");
    });
}

#[test]
fn gathered_arrays_stand_in_rank_order() {
    with_ranks(3, |seat| {
        let group = seat.join(1);
        let mine = Array::full(&[1, 2], number(seat.rank), Dtype::F32);
        let all = group.all_gather(&mine);
        assert_eq!(all.shape(), [3, 2]);
        assert_eq!(all.to_vec::<f32>().unwrap(), [0., 0., 1., 1., 2., 2.]);
    });
}

#[test]
fn an_array_travels_from_rank_to_rank() {
    with_ranks(3, |seat| {
        let group = seat.join(1);
        // 0 → 1 → 2, each adds one.
        let x = match seat.rank {
            0 => Array::zeros(&[2, 2], Dtype::Bf16),
            rank => group.recv(&[2, 2], Dtype::Bf16, rank - 1) + 1.0,
        };
        let last = if seat.rank == 2 { x } else { group.send(&x, seat.rank + 1) };
        let expected = bf16::from_f32(number(seat.rank));
        assert_eq!(last.to_vec::<bf16>().unwrap(), [expected; 4]);
        let (message, _) = panic_of(|| drop(group.recv(&[1], Dtype::F32, 3)));
        assert!(message.starts_with("recv: rank 3 is not a peer"), "{message}");
    });
}

#[test]
fn a_lost_rank_is_an_error_and_the_next_epoch_works_with_the_same_arrays() {
    with_ranks(3, |seat| {
        let weights = Array::full(&[64], 2.0, Dtype::F32);
        weights.eval().unwrap();
        for epoch in 1..=2 {
            let group = seat.join(epoch);
            group.all_sum(&weights).eval().unwrap();
            if seat.rank == 1 {
                // Leaves without notice, as a killed process does.
                drop(group);
            } else {
                // Many collectives in one graph: all after the first fail because of it.
                let mut x = weights.clone();
                for _ in 0..20 {
                    x = group.all_sum(&(x * 0.5));
                }
                let err = x.eval().unwrap_err();
                let Error::Evaluation { message } = &err else { panic!("{err}") };
                assert!(message.contains("all_sum"), "{message}");
                assert!(group.failure().is_some(), "{message}");
                assert!(group.all_sum(&weights).eval().is_err(), "a failed group stays failed");
            }
            // Evaluations without the group are not affected.
            assert_eq!((&weights + 1.0).to_vec::<f32>().unwrap(), [3.0; 64]);
        }
        let group = seat.join(3);
        assert_eq!(group.all_sum(&weights).to_vec::<f32>().unwrap(), [6.0; 64]);
    });
}

#[test]
fn ranks_in_different_operations_fail_instead_of_computing_nonsense() {
    with_ranks(2, |seat| {
        let group = seat.join(1);
        let x = Array::zeros(&[4], Dtype::F32);
        let result = if seat.rank == 0 { group.all_sum(&x) } else { group.all_gather(&x) };
        let message = result.eval().unwrap_err().to_string();
        assert!(message.contains("rank"), "{message}");
    });
}

#[test]
fn another_thread_can_end_the_waiting() {
    let meeting = Meeting::default();
    with_ranks(2, |seat| {
        let group = seat.join(1);
        if seat.rank == 0 {
            let interrupter = group.interrupter().unwrap();
            let control = thread::spawn(move || interrupter.interrupt());
            let x = Array::zeros(&[4], Dtype::F32);
            // Interrupted before or while it waits for a rank that never connects.
            group.all_sum(&x).eval().unwrap_err();
            control.join().unwrap();
            let failure = group.failure().unwrap();
            assert!(matches!(failure, transport::TransportError::Interrupted { .. }), "{failure}");
        }
        meeting.wait_for(2);
    });
}

#[test]
fn a_group_of_one_returns_its_arguments() {
    let x = Array::full(&[2], 3.0, Dtype::F32);
    let single = Group::single();
    assert_eq!((single.rank(), single.size()), (0, 1));
    assert_eq!(single.all_sum(&x).to_vec::<f32>().unwrap(), [3.0; 2]);
    assert_eq!(single.all_gather(&x).to_vec::<f32>().unwrap(), [3.0; 2]);
    assert!(single.stats().is_none() && single.failure().is_none());
    with_ranks(1, |seat| {
        let x = Array::full(&[2], 3.0, Dtype::F32);
        assert_eq!(seat.join(1).all_sum(&x).to_vec::<f32>().unwrap(), [3.0; 2]);
    });
}

#[test]
fn a_backend_this_machine_lacks_is_refused_by_name() {
    for backend in [Backend::Jaccl, Backend::Nccl] {
        let message = Group::stock(backend, 0, 2).unwrap_err().to_string();
        assert!(message.contains(backend.name()), "{message}");
    }
    // If the backend is built in, its settings are missing; it must not silently form a group of one.
    let message = Group::stock(Backend::Ring, 0, 2).unwrap_err().to_string();
    assert!(message.contains("MLX_HOSTFILE"), "{message}");
}

/// Set in the processes that this test starts as ranks of a ring.
const RING_RANK: &str = "JACKALOPE_TEST_RING_RANK";

#[test]
#[expect(clippy::disallowed_methods, reason = "the stock ring is configured by the environment")]
fn the_stock_ring_sums_between_two_processes() {
    if let Some(rank) = std::env::var_os(RING_RANK) {
        return ring_rank(rank.to_str().unwrap().parse().unwrap());
    }
    let hostfile = std::env::temp_dir().join(format!("jackalope-ring-{}", std::process::id()));
    let ports = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let hosts = ports.map(|port| format!("[\"{}\"]", port.local_addr().unwrap()));
    std::fs::write(&hostfile, format!("[{}]", hosts.join(","))).unwrap();
    let mut ranks = [0, 1].map(|rank: usize| {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "group::the_stock_ring_sums_between_two_processes", "--nocapture"])
            .env(RING_RANK, rank.to_string())
            .env("MLX_RANK", rank.to_string())
            .env("MLX_HOSTFILE", &hostfile)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let outputs = ranks.each_mut().map(output_in_time);
    std::fs::remove_file(&hostfile).unwrap();
    for output in outputs {
        assert!(output.contains("ring sums to 3"), "{output}");
    }
}

/// Returns a child's output until its end; kills it if that takes longer than the ring's own retries.
fn output_in_time(child: &mut Child) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        thread::yield_now();
        thread::park_timeout(Duration::from_millis(5));
    }
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    output
}

#[expect(clippy::print_stdout, reason = "the parent reads it")]
fn ring_rank(rank: usize) {
    let err = Group::stock(Backend::Ring, rank, 3).unwrap_err();
    assert!(matches!(err, Error::GroupMismatch { found_size: 2, .. }), "{err}");
    let group = Group::stock(Backend::Ring, rank, 2).unwrap();
    let sum = group.all_sum(&Array::full(&[8], number(rank) + 1.0, Dtype::F32));
    println!("ring sums to {}", sum.to_vec::<f32>().unwrap()[7]);
}

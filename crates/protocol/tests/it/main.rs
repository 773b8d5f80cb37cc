//! Every frame survives the trip; truncated, oversized and foreign ones are refused.

use std::io::Cursor;

use jackalope_protocol::frame::{self, MAX_FRAME_BYTES};
use jackalope_protocol::{
    CacheId, Embed, Forget, Fork, FrameError, FromRank, HeartbeatEcho, Hello, Input, Phase,
    Pooling, RankMemory, Row, Sampling, Score, Secret, StepPlan, ToRank, WindowDrop,
};
use proptest::prelude::*;

fn row() -> impl Strategy<Value = Row> {
    (
        any::<u64>(),
        any::<u32>(),
        prop_oneof![
            prop::collection::vec(any::<u32>(), 1..50).prop_map(Input::Tokens),
            Just(Input::Previous)
        ],
        prop::option::of(prop::collection::vec((any::<u32>(), -100f32..100.0), 0..5)),
        prop::option::of(prop::collection::vec(any::<u32>(), 0..9)),
    )
        .prop_map(|(cache, start, input, bias, targets)| Row {
            cache: CacheId(cache),
            start,
            keeps: start % 2 == 1,
            input,
            sample: bias.map(|logit_bias| Sampling { logit_bias, ..Sampling::greedy(start) }),
            embed: targets.as_ref().map(|_| Embed { pooling: Pooling::Mean, num_tokens: start }),
            score: targets.map(|targets| Score { targets, num_top: 3 }),
        })
}

fn plan() -> impl Strategy<Value = StepPlan> {
    let fork = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>()).prop_map(
        |(source, target, num_tokens, window_start)| Fork {
            source: CacheId(source),
            target: CacheId(target),
            num_tokens,
            window_start,
        },
    );
    let drops = prop::collection::vec(any::<u64>().prop_map(CacheId), 0..9);
    let (forks, rows) = (prop::collection::vec(fork, 0..9), prop::collection::vec(row(), 0..9));
    let forget = (any::<u64>(), any::<u32>())
        .prop_map(|(cache, num_tokens)| Forget { cache: CacheId(cache), num_tokens });
    let forgets = prop::collection::vec(forget, 0..9);
    let window_drop = (any::<u64>(), any::<u32>(), any::<u32>())
        .prop_map(|(cache, start, end)| WindowDrop { cache: CacheId(cache), start, end });
    let window_drops = prop::collection::vec(window_drop, 0..9);
    (any::<u64>(), forks, forgets, window_drops, drops, any::<bool>(), rows).prop_map(
        |(step, forks, forgets, window_drops, drops, returns_memory, rows)| StepPlan {
            step,
            forks,
            forgets,
            window_drops,
            drops,
            returns_memory,
            rows,
        },
    )
}

proptest! {
    #[test]
    fn every_plan_survives_the_trip(plan in plan(), epoch in any::<u64>()) {
        let sent = ToRank::Step { epoch, plan };
        let bytes = frame::encode(&sent).unwrap();
        let received: ToRank = frame::read(&mut Cursor::new(bytes)).unwrap();
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn a_truncated_frame_is_an_error(plan in plan(), cut in 0.0f64..1.0) {
        let bytes = frame::encode(&ToRank::Step { epoch: 1, plan }).unwrap();
        let kept = (bytes.len() as f64 * cut) as usize;
        let result: Result<ToRank, FrameError> = frame::read(&mut Cursor::new(&bytes[..kept]));
        match result {
            Err(FrameError::Closed) => prop_assert_eq!(kept, 0),
            Err(FrameError::Io(_)) => prop_assert!(0 < kept),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn garbage_is_refused_and_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut framed = u32::try_from(bytes.len()).unwrap().to_le_bytes().to_vec();
        framed.extend(&bytes);
        let result: Result<ToRank, FrameError> = frame::read(&mut Cursor::new(framed));
        if let Ok(message) = result {
            prop_assert_eq!(&frame::encode(&message).unwrap()[4..], &bytes[..]);
        }
    }
}

#[test]
fn leftover_bytes_are_refused() {
    let mut bytes = frame::encode(&ToRank::Stop).unwrap();
    bytes.push(0);
    bytes[0] += 1;
    let result: Result<ToRank, FrameError> = frame::read(&mut Cursor::new(bytes));
    assert!(matches!(result, Err(FrameError::Malformed { .. })), "{result:?}");
}

#[test]
fn an_oversized_length_is_refused_before_memory_is_taken() {
    let bytes = u32::try_from(MAX_FRAME_BYTES + 1).unwrap().to_le_bytes();
    let result: Result<FromRank, FrameError> = frame::read(&mut Cursor::new(bytes));
    assert!(matches!(result, Err(FrameError::Oversized { .. })), "{result:?}");
}

#[test]
fn an_oversized_message_is_refused_before_it_is_sent() {
    let message = FromRank::Failed(jackalope_protocol::RankFailure {
        epoch: 0,
        phase: Phase::Loading,
        kind: jackalope_protocol::FailureKind::Model,
        message: "x".repeat(MAX_FRAME_BYTES + 1),
        peers: Vec::new(),
    });
    assert!(matches!(frame::encode(&message), Err(FrameError::Oversized { .. })));
}

#[test]
fn several_frames_follow_each_other() {
    let heartbeat = FromRank::Heartbeat {
        phase: Phase::Idle,
        steps_done: 7,
        waiting_ms: 20,
        memory: RankMemory { kv_bytes: 9, ..RankMemory::default() },
        echo: Some(HeartbeatEcho { sent_us: 5, held_us: 3 }),
    };
    let hello = Hello {
        rank: 1,
        pid: 42,
        mlx: "0.32.4".to_owned(),
        data_addr: "127.0.0.1:9".parse().unwrap(),
    };
    let mut stream = Vec::new();
    frame::write(&mut stream, &hello).unwrap();
    frame::write(&mut stream, &heartbeat).unwrap();
    let mut stream = Cursor::new(stream);
    assert_eq!(frame::read::<Hello>(&mut stream).unwrap(), hello);
    assert_eq!(frame::read::<FromRank>(&mut stream).unwrap(), heartbeat);
    assert!(matches!(frame::read::<FromRank>(&mut stream), Err(FrameError::Closed)));
}

#[test]
fn a_secret_is_never_printed_and_travels_as_hexadecimal_digits() {
    let secret = Secret(std::array::from_fn(|idx| (idx * 9) as u8));
    assert_eq!(format!("{secret:?}"), "Secret(…)");
    assert_eq!(Secret::from_hex(&format!("{}\n", secret.to_hex())), Some(secret));
    for text in ["", "00", &"0g".repeat(32), &"é".repeat(32)] {
        assert_eq!(Secret::from_hex(text), None, "{text}");
    }
}

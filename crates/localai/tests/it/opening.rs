//! A server that has no model until LocalAI names one.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use jackalope_localai::{LocalAi, ModelOpener, ModelOrder};
use jackalope_server::{LoadFuture, ModelLoadError, Models};
use prost::Message;

use crate::calls::{FAILED_PRECONDITION, load, one, prompt, refused, text};
use crate::house::{House, plan};
use crate::wire::{Ask, Load, Metrics, Outcome, Reply, State};

/// How long a call waits for its model, usually.
const PATIENT: Duration = Duration::from_secs(60);

/// Brings every model but one.
#[derive(Debug, Default)]
struct FakeOpener {
    models: OnceLock<Models>,
    orders: Mutex<Vec<ModelOrder>>,
}

impl ModelOpener for FakeOpener {
    fn open(&self, order: &ModelOrder) -> LoadFuture<String> {
        self.orders.lock().unwrap().push(order.clone());
        let id = order.model.clone();
        let found = if id == "nowhere" {
            Err(ModelLoadError { message: "there is no model nowhere".to_owned() })
        } else {
            self.models.get().unwrap().add(&id, None);
            Ok(id)
        };
        Box::pin(async { found })
    }

    fn missing(&self, order: &ModelOrder, ranks: &[usize]) -> String {
        format!("start {ranks:?} of {}", order.model)
    }
}

/// A backend without a model, over a house whose loads are logged.
struct Empty {
    house: House,
    localai: LocalAi,
    opener: Arc<FakeOpener>,
}

fn empty_house(load_wait: Duration) -> Empty {
    let opener = Arc::new(FakeOpener::default());
    let house = plan(&[]).change(|plan| {
        plan.unknown = vec![("alpha".to_owned(), 6), ("beta".to_owned(), 6)];
        plan.server.limits.load_wait = load_wait;
    });
    let house = house.build();
    opener.models.set(house.models.clone()).unwrap();
    let localai = LocalAi::with_opener(house.state.clone(), opener.clone());
    Empty { house, localai, opener }
}

async fn said(localai: &LocalAi, identity: &str) -> String {
    let ask = Ask { model_identity: identity.to_owned(), ..prompt("Hello") };
    text(&[one::<Reply>(localai, "Predict", &ask).await])
}

fn nothing() -> impl Message {
    Load::default()
}

#[tokio::test]
async fn nothing_is_there_until_it_is_loaded_and_after_it_is_freed() {
    let Empty { house, localai, .. } = empty_house(PATIENT);
    let state = &localai;
    for round in 0..2 {
        assert_eq!(one::<Reply>(state, "Health", &nothing()).await.message, b"OK");
        assert_eq!(one::<State>(state, "Status", &nothing()).await.state, 0, "round {round}");
        for (call, identity) in [("Predict", ""), ("PredictStream", "alpha"), ("Embedding", "")] {
            let ask = Ask { model_identity: identity.to_owned(), ..prompt("Hello") };
            let (code, message) = refused(state, call, &ask).await;
            assert!(code == FAILED_PRECONDITION && message.starts_with("model not loaded"));
        }
        assert_eq!(refused(state, "GetMetrics", &nothing()).await.0, FAILED_PRECONDITION);
        let outcome = load(state, "nowhere", &[]).await;
        assert!(!outcome.success && outcome.message.contains("there is no model nowhere"));

        assert!(load(state, "alpha", &["temperature:0"]).await.success);
        assert_eq!(said(state, "").await, "aaa");
        assert_eq!(one::<State>(state, "Status", &nothing()).await.state, 2);
        one::<Metrics>(state, "GetMetrics", &nothing()).await;
        assert!(one::<Outcome>(state, "Free", &nothing()).await.success);
    }
    assert_eq!(house.log(), ["load alpha", "end alpha", "load alpha", "end alpha"]);
}

#[tokio::test]
async fn another_model_or_other_machines_take_the_place_of_the_first() {
    let Empty { house, localai, opener } = empty_house(PATIENT);
    let state = &localai;
    assert!(load(state, "alpha", &["hostfile:/h.json"]).await.success);
    assert!(load(state, "alpha", &["hostfile:/h.json", "max_tokens:2"]).await.success);
    assert_eq!(said(state, "alpha").await, "aa", "the same ranks, other options");
    assert_eq!(house.log(), ["load alpha"]);
    assert!(load(state, "alpha", &["hostfile:/i.json", "distributed_backend:ring"]).await.success);
    assert!(load(state, "beta", &[]).await.success);
    assert_eq!(said(state, "beta").await, "bbb");
    assert_eq!(house.log()[..2], ["load alpha", "end alpha"]);
    assert_eq!(house.log()[2..], ["load alpha", "end alpha", "load beta"]);
    let orders = opener.orders.lock().unwrap();
    let hostfiles: Vec<_> = orders.iter().map(|it| it.hostfile.as_deref()).collect();
    assert_eq!(hostfiles, [Some("/h.json"), Some("/i.json"), None]);
    assert_eq!(orders[1].backend.as_deref(), Some("ring"));
}

/// Asks for a model as often as it takes.
async fn load_at_last(localai: &LocalAi, model: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let outcome = load(localai, model, &[]).await;
        if outcome.success {
            return;
        }
        assert!(outcome.message.contains("is loading"), "{outcome:?}");
        assert!(Instant::now() < deadline, "{model} is never loaded");
    }
}

#[tokio::test]
async fn a_load_that_takes_too_long_is_reported_and_may_be_replaced() {
    let Empty { house, localai, .. } = empty_house(Duration::from_millis(200));
    let state = &localai;
    house.open_gate(false);
    let outcome = load(state, "alpha", &[]).await;
    assert!(!outcome.success && outcome.message.contains("alpha is loading"), "{outcome:?}");
    // The load goes on, and another call finds it.
    house.open_gate(true);
    load_at_last(state, "alpha").await;
    assert_eq!(house.log(), ["load alpha"]);
    house.open_gate(false);
    assert!(!load(state, "beta", &[]).await.success);
    // One that nobody waits for any more makes room at once.
    let outcome = load(state, "alpha", &[]).await;
    assert!(!outcome.success && outcome.message.contains("alpha is loading"), "{outcome:?}");
    house.open_gate(true);
    load_at_last(state, "alpha").await;
    assert_eq!(said(state, "alpha").await, "aaa");
}

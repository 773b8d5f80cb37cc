//! A server of several models over fake ranks.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use futures_util::future::BoxFuture;
use jackalope_engine::testing::{
    FakeControl, FakeOptions, FakeOrder, FakeRanks, fake_facts, scripted_model,
};
use jackalope_engine::{Engine, EngineConfig, EngineHandle};
use jackalope_server::{
    KnownModel, MachineBytes, ModelLoadError, ModelLoader, Models, ModelsConfig, RunningModel,
    ServerConfig, ServerState, StartedModel,
};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::model;
use crate::support::{CONTEXT_TOKENS, Reply, end_token, post, send};

const COMPLETIONS: &str = "/v1/completions";

/// Loads models that repeat one letter, over fake ranks.
pub(crate) struct FakeLoader {
    /// What each takes.
    pub(crate) needs: BTreeMap<String, u64>,
    /// What was done, in order.
    pub(crate) log: Mutex<Vec<String>>,
    /// How often each still fails.
    pub(crate) failures: Mutex<HashMap<String, u32>>,
    pub(crate) engines: Mutex<HashMap<String, (EngineHandle, FakeControl)>>,
    /// Engines are started while it is open.
    gate: watch::Sender<bool>,
    pub(crate) answer_tokens: usize,
}

impl FakeLoader {
    fn note(&self, what: &str, id: &str) {
        self.log.lock().unwrap().push(format!("{what} {id}"));
    }
}

/// For an implementation that hands itself on.
struct Shared(Arc<FakeLoader>);

impl ModelLoader for Shared {
    fn need(&self, id: &str) -> BoxFuture<'static, Result<MachineBytes, ModelLoadError>> {
        let bytes = self.0.needs[id];
        Box::pin(async move { Ok(MachineBytes([("here".to_owned(), bytes)].into())) })
    }

    fn start(&self, id: &str) -> BoxFuture<'static, Result<StartedModel, ModelLoadError>> {
        let (loader, id) = (Arc::clone(&self.0), id.to_owned());
        Box::pin(async move {
            loader.note("load", &id);
            loader.gate.subscribe().wait_for(|is_open| *is_open).await.unwrap();
            if let Some(left) = loader.failures.lock().unwrap().get_mut(&id)
                && 0 < *left
            {
                *left -= 1;
                return Err(ModelLoadError { message: "the disk is full of bees".to_owned() });
            }
            let text = model::text();
            let letter = text.tokenizer.encode(&id[..1], false).unwrap()[0];
            let num_tokens = loader.answer_tokens;
            let (ranks, control) = FakeRanks::new(FakeOptions {
                facts: fake_facts(text.tokenizer.vocab_size() as u32, CONTEXT_TOKENS),
                next_token: scripted_model(move |_| vec![letter; num_tokens], end_token()),
                ..FakeOptions::default()
            });
            let eos_tokens = text.tokenizer.eos_token_ids().to_vec();
            let config = EngineConfig { eos_tokens, ..EngineConfig::default() };
            let (engine, thread) = Engine::spawn(config, ranks);
            loader.engines.lock().unwrap().insert(id.clone(), (engine.clone(), control));
            let model = RunningModel::new(&id, engine, text);
            // A thread of tokio's pool would keep a paused clock from moving.
            let (tell, told) = oneshot::channel();
            std::thread::spawn(move || tell.send(thread.join()).ok());
            let ended = Box::pin(async move {
                told.await.unwrap().unwrap().unwrap();
                loader.note("end", &id);
                Ok(())
            });
            Ok(StartedModel { model, ended })
        })
    }
}

/// A server of several models under test.
pub(crate) struct House {
    pub(crate) state: ServerState,
    pub(crate) models: Models,
    pub(crate) loader: Arc<FakeLoader>,
}

/// How it is made: ids with what they take, of ten in all.
pub(crate) struct Plan {
    /// What those take that are not known at the start.
    pub(crate) unknown: Vec<(String, u64)>,
    pub(crate) known: Vec<(KnownModel, u64)>,
    pub(crate) config: ModelsConfig,
    pub(crate) server: ServerConfig,
    pub(crate) answer_tokens: usize,
}

pub(crate) fn plan(needs: &[(&str, u64)]) -> Plan {
    let budget = MachineBytes([("here".to_owned(), 10)].into());
    Plan {
        unknown: Vec::new(),
        known: needs.iter().map(|&(id, bytes)| (KnownModel::new(id), bytes)).collect(),
        config: ModelsConfig { budget, load_on_demand: true, ..ModelsConfig::default() },
        server: ServerConfig { model_control: true, ..ServerConfig::default() },
        answer_tokens: 3,
    }
}

impl Plan {
    pub(crate) fn change(mut self, change: impl FnOnce(&mut Plan)) -> Plan {
        change(&mut self);
        self
    }

    pub(crate) fn pin(self, idx: usize) -> Plan {
        self.change(|plan| plan.known[idx].0.is_pinned = true)
    }

    pub(crate) fn build(self) -> House {
        let needs = self.known.iter().map(|(known, bytes)| (known.id.clone(), *bytes));
        let needs = needs.chain(self.unknown).collect();
        let loader = Arc::new(FakeLoader {
            needs,
            log: Mutex::default(),
            failures: Mutex::default(),
            engines: Mutex::default(),
            gate: watch::Sender::new(true),
            answer_tokens: self.answer_tokens,
        });
        let known = self.known.into_iter().map(|it| it.0).collect();
        let models = Models::new(Arc::new(Shared(Arc::clone(&loader))), known, self.config);
        let state = ServerState::with_models(models.clone(), self.server);
        House { state, models, loader }
    }
}

impl House {
    /// Whether engines are started.
    pub(crate) fn open_gate(&self, is_open: bool) {
        self.loader.gate.send_replace(is_open);
    }

    pub(crate) fn request(model: &str) -> Request<Body> {
        let body = json!({"model": model, "prompt": "Hello", "max_tokens": 200});
        post(COMPLETIONS, body.to_string())
    }

    pub(crate) fn streaming(model: &str) -> Request<Body> {
        let body = json!({"model": model, "prompt": "Hi", "max_tokens": 200, "stream": true});
        post(COMPLETIONS, body.to_string())
    }

    pub(crate) async fn ask(&self, model: &str) -> Reply {
        send(&self.state, House::request(model)).await
    }

    /// Asks beside the test.
    pub(crate) fn ask_aside(&self, model: &str) -> JoinHandle<Reply> {
        let (state, request) = (self.state.clone(), House::request(model));
        tokio::spawn(async move { send(&state, request).await })
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        send(&self.state, Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        send(&self.state, post(path, body.to_string())).await
    }

    /// The states of all models, by id.
    pub(crate) async fn states(&self) -> BTreeMap<String, String> {
        let list = self.get("/v1/models").await.ok();
        let state = |it: &Value| {
            (it["id"].as_str().unwrap().to_owned(), it["state"].as_str().unwrap().to_owned())
        };
        list["data"].as_array().unwrap().iter().map(state).collect()
    }

    /// Waits until a model is in this state. Nothing announces a change of state, so this asks for it
    /// every millisecond.
    pub(crate) async fn until(&self, id: &str, state: &str) {
        let looking = async {
            while self.states().await[id] != state {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let patience = Duration::from_secs(60);
        let in_time = tokio::time::timeout(patience, looking).await;
        assert!(in_time.is_ok(), "{id} never became {state}");
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.loader.log.lock().unwrap().clone()
    }

    pub(crate) fn order(&self, id: &str, order: FakeOrder) {
        self.loader.engines.lock().unwrap()[id].1.order(order);
    }
}

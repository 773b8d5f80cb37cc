//! The guide of a sequence, and what it says of the next token.

use std::num::NonZero;
use std::sync::OnceLock;

use jackalope_protocol::TokenId;

use super::Scheduler;
use crate::guide::{Allowed, Guide, GuideError, TokenMask};
use crate::{Event, FinishReason, RequestId};

/// Guides asked by one thread before another is started; asking takes some ten microseconds.
const ASKED_PER_THREAD: usize = 4;

/// A guide with its last word.
#[derive(Debug)]
pub(super) struct Guided {
    guide: Box<dyn Guide>,
    /// What the request allows besides.
    bound: Option<TokenMask>,
    next: Next,
    /// Nobody has acted on `next` yet.
    is_news: bool,
    /// The token under way was planned as one that does not end the output.
    planned_not_end: bool,
}

/// What the guide says of the token after all that are known.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// It has not been asked.
    Unknown,
    /// Any.
    All,
    /// Any that does not end the output.
    NotEnd,
    /// One of these.
    Masked(TokenMask),
    /// The output is complete.
    End,
    /// It cannot go on.
    Failed(GuideError),
}

impl Guided {
    pub(super) fn new(guide: Box<dyn Guide>, bound: Option<TokenMask>) -> Guided {
        Guided { guide, bound, next: Next::Unknown, is_news: true, planned_not_end: false }
    }

    /// What it said last.
    pub(super) fn next(&self) -> &Next {
        &self.next
    }

    /// True if the next token may be planned only once the one before it is known.
    pub(super) fn binds_next(&self) -> bool {
        !matches!(self.next, Next::All | Next::NotEnd)
    }

    /// A token is planned by what it said last.
    pub(super) fn note_planned(&mut self) {
        self.planned_not_end = self.next == Next::NotEnd;
    }

    /// True if a token that was planned before the last answer is still one it allows, drawn as it
    /// would be now.
    fn keeps_planned(&self) -> bool {
        match self.next {
            Next::All => !self.planned_not_end,
            Next::NotEnd => self.planned_not_end,
            Next::Unknown | Next::Masked(_) | Next::End | Next::Failed(_) => false,
        }
    }

    pub(super) fn accept(&mut self, token: TokenId) {
        self.is_news = true;
        self.next = match self.guide.accept(token) {
            Ok(()) => Next::Unknown,
            Err(err) => Next::Failed(err),
        };
    }

    fn ask(&mut self, vocab_size: u32) {
        if self.next != Next::Unknown {
            return;
        }
        let mut mask = TokenMask::all(vocab_size);
        self.next = match self.guide.allowed(&mut mask) {
            Err(err) => Next::Failed(err),
            Ok(Allowed::All) => Next::All,
            Ok(Allowed::NotEnd) => Next::NotEnd,
            Ok(Allowed::Masked) if mask.is_empty() => Next::End,
            Ok(Allowed::Masked) => {
                if let Some(bound) = &self.bound {
                    mask.intersect(bound);
                }
                if mask.is_empty() {
                    let message =
                        "no token is both allowed by the request's list of tokens and by \
                                   the structure it asks for"
                            .to_owned();
                    Next::Failed(GuideError { message })
                } else {
                    Next::Masked(mask)
                }
            }
        };
    }
}

/// Looked up once: the system takes longer to tell than a guide to answer.
fn num_cores() -> usize {
    static NUM_CORES: OnceLock<usize> = OnceLock::new();
    *NUM_CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZero::get))
}

impl Scheduler {
    /// Asks every guide whose sequence has a new token, side by side if there are many, and acts on
    /// the answers. This is done when tokens are taken in, while the ranks compute the next step.
    pub(super) fn ask_guides(&mut self) {
        let vocab_size = self.limits.vocab_size;
        let all = self.running.iter_mut().chain(&mut self.waiting);
        let guides = all.filter_map(|it| it.guided.as_mut());
        let mut unasked: Vec<&mut Guided> = guides.filter(|it| it.is_news).collect();
        if unasked.is_empty() {
            return;
        }
        let num_threads = unasked.len().div_ceil(ASKED_PER_THREAD).min(num_cores());
        let share = unasked.len().div_ceil(num_threads);
        std::thread::scope(|scope| {
            let mut shares = unasked.chunks_mut(share);
            let own = shares.next().expect("there are guides to ask");
            for others in shares {
                scope.spawn(|| others.iter_mut().for_each(|it| it.ask(vocab_size)));
            }
            own.iter_mut().for_each(|it| it.ask(vocab_size));
        });
        self.follow_guides();
    }

    /// Ends what guides end, and throws away draws that were planned as if anything were allowed.
    fn follow_guides(&mut self) {
        let mut over: Vec<RequestId> = Vec::new();
        for sequence in self.running.iter_mut().chain(&mut self.waiting) {
            let Some(guided) = sequence.guided.as_mut().filter(|it| it.is_news) else { continue };
            guided.is_news = false;
            match guided.next() {
                Next::End | Next::Failed(_) => over.push(sequence.id),
                _ if guided.keeps_planned() => {}
                _ => sequence.discard_pending(self.planted),
            }
        }
        over.sort_unstable();
        for id in over {
            let sequence = self.take(id);
            if sequence.cached_tokens.is_none() {
                self.tell_started(&sequence, 0);
            }
            if sequence.cache.is_some() {
                self.release(&sequence);
            }
            if let Some(Next::Failed(GuideError { message })) =
                sequence.guided.as_ref().map(Guided::next)
            {
                let completion_tokens = sequence.usage().completion_tokens;
                let message = message.clone();
                self.events.push((id, Event::GuideFailed { message, completion_tokens }));
            } else {
                self.tell_finished(&sequence, FinishReason::Stop);
            }
        }
    }
}

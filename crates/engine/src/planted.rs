//! Mistakes the scheduler can be made to make, so that the simulation shows it would find them.
//! Outside of tests there are none: [`Planted::has`] is then a constant.

/// One mistake. The comment says what the code does wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Bug {
    /// Takes the last prompt token from the cache too, so that nothing is left to compute.
    CachedToTheEnd,
    /// Tells a token that was drawn after the request had ended.
    ExtraTokenTold,
    /// Lets a preempted sequence run again while its token is still under way.
    ReadmittedTooEarly,
    /// Goes on waiting for tokens that were lost with the ranks.
    PendingKeptOnCrash,
    /// Keeps the prefix index although the ranks came back empty.
    IndexKeptOnCrash,
    /// Never tells the ranks that a cache was given back.
    ForgottenDrop,
    /// Does not count what a copy takes.
    UncountedFork,
    /// Copies into memory that is given back in the same step, but only after the copy.
    ForkInMemoryJustDropped,
    /// Indexes tokens of a finished sequence that were never computed.
    IndexUncomputed,
    /// Copies positions that the same step is still to compute.
    ForkOfUnplannedRows,
    /// Takes the token of a row from the step before, though that row drew none there.
    PreviousOfOlderStep,
    /// Counts drawn tokens of a preempted sequence as its prompt.
    PromptGrowsOnPreemption,
    /// Starts a request for the prompt's log-probabilities in the middle of the prompt.
    ScoresSkipped,
    /// Starts a request for the mean of its hidden states in the middle of the prompt.
    EmbeddedFromCache,
    /// Adds scores that were computed a second time after a preemption.
    ScoresRepeated,
    /// Lets a large request be overtaken for ever by small ones.
    OvertakenForEver,
    /// Gives the whole step to the oldest prompt.
    DecodesStarved,
    /// In a pipeline, lets the oldest have every turn.
    TurnsByAge,
    /// Takes the most important sequence that runs longest when memory is short.
    OldestPreempted,
    /// Draws one token more than was asked for.
    OneTokenTooMany,
    /// Lets the important overtake everybody else for ever.
    NeverAged,
    /// Admits by age alone, whoever asks.
    TenantsIgnored,
    /// Keeps a token that was planned before the guide bounded it.
    UnguidedDrawKept,
    /// Loses count of tokens that are not wanted any more when the ranks are lost.
    DiscardedKeptOnCrash,
    /// Leaves a cancelled sequence's cache in use.
    CacheLeakedOnCancel,
    /// Keeps finished sequences although other programs need the memory.
    KeptUnderPressure,
    /// Admits as ever although other programs need the memory.
    AdmittedUnderPressure,
    /// Counts recomputing positions after a loss as progress of a suspected request.
    RepetitionIsProgress,
    /// Keeps counting failures from before a request made progress.
    SuspectForEver,
    /// Ends every request that was in flight, not only the one that makes ranks fail.
    SuspectsTogether,
    /// Ends a request after a single failure while it was computed alone.
    NamedTooEarly,
}

/// The mistake planted in this scheduler, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted {
    #[cfg(test)]
    pub(crate) bug: Option<Bug>,
}

impl Planted {
    #[cfg(test)]
    pub(crate) fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the signature of the test's variant")]
    pub(crate) const fn has(self, _: Bug) -> bool {
        false
    }
}

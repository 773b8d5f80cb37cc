//! An index of cached prefixes: a radix tree over token ids.
//!
//! The index knows tokens and ids of caches; it knows nothing of memory, of the users of a cache,
//! or of how much of a cache is computed. Every node lists the caches whose tokens lead through it,
//! so that all caches that share a prefix are listed at the node where the prefix ends.

use std::collections::HashMap;

use jackalope_protocol::{CacheId, TokenId};

const ROOT: usize = 0;

/// A radix tree of token sequences, one per cache.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    nodes: Vec<Node>,
    /// Indices in `nodes` that are not in use.
    vacant: Vec<usize>,
    /// Node at which each cache's tokens end, exactly at the end of that node's edge.
    leaves: HashMap<CacheId, usize>,
    num_tokens: usize,
}

#[derive(Debug, Default)]
struct Node {
    parent: usize,
    /// Tokens on the edge from the parent. Empty for the root only.
    edge: Vec<TokenId>,
    /// Children by the first token of their edge, sorted.
    children: Vec<(TokenId, usize)>,
    /// Caches whose tokens lead through or end at this node, in no order.
    caches: Vec<CacheId>,
}

/// Caches that share the first `num_tokens` tokens with the looked-up sequence.
#[derive(Debug)]
pub(crate) struct Match<'a> {
    pub(crate) num_tokens: usize,
    pub(crate) caches: &'a [CacheId],
}

impl PrefixIndex {
    pub(crate) fn new() -> PrefixIndex {
        PrefixIndex {
            nodes: vec![Node::default()],
            vacant: Vec::new(),
            leaves: HashMap::new(),
            num_tokens: 0,
        }
    }

    /// Returns the number of tokens stored; shared ones count once.
    pub(crate) fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    /// Whether the index holds no cache.
    pub(crate) fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// Returns the nodes on the path of `tokens`, longest match first. Each lists at least the
    /// caches of the one before it.
    pub(crate) fn matches(&self, tokens: &[TokenId]) -> Vec<Match<'_>> {
        let mut found = Vec::new();
        let mut at = ROOT;
        let mut num_tokens = 0;
        while let Some(child) = self.child(at, tokens.get(num_tokens)) {
            let node = &self.nodes[child];
            let common = common_prefix(&node.edge, &tokens[num_tokens..]);
            num_tokens += common;
            found.push(Match { num_tokens, caches: &node.caches });
            if common < node.edge.len() {
                break;
            }
            at = child;
        }
        found.reverse();
        found
    }

    /// Adds a cache that is not in the index yet.
    pub(crate) fn insert(&mut self, cache: CacheId, tokens: &[TokenId]) {
        assert!(!self.leaves.contains_key(&cache), "a cache is indexed once");
        let mut at = ROOT;
        let mut rest = tokens;
        while let Some(child) = self.child(at, rest.first()) {
            let common = common_prefix(&self.nodes[child].edge, rest);
            at = if common < self.nodes[child].edge.len() {
                self.split(child, common)
            } else {
                child
            };
            self.nodes[at].caches.push(cache);
            rest = &rest[common..];
        }
        if let Some(first) = rest.first() {
            let node =
                Node { parent: at, edge: rest.to_vec(), children: Vec::new(), caches: vec![cache] };
            let leaf = self.add(node);
            self.link(at, *first, leaf);
            self.num_tokens += rest.len();
            at = leaf;
        }
        self.leaves.insert(cache, at);
    }

    /// Removes a cache; does nothing if it is not in the index.
    pub(crate) fn remove(&mut self, cache: CacheId) {
        let Some(mut at) = self.leaves.remove(&cache) else { return };
        while at != ROOT {
            let node = &mut self.nodes[at];
            let parent = node.parent;
            let place = node.caches.iter().position(|it| *it == cache);
            node.caches.swap_remove(place.expect("a node lists every cache that leads through it"));
            if node.caches.is_empty() {
                self.discard(at);
            } else {
                self.join(at);
            }
            at = parent;
        }
    }

    fn child(&self, at: usize, first: Option<&TokenId>) -> Option<usize> {
        let children = &self.nodes[at].children;
        let place = children.binary_search_by_key(first?, |(token, _)| *token).ok()?;
        Some(children[place].1)
    }

    fn add(&mut self, node: Node) -> usize {
        if let Some(place) = self.vacant.pop() {
            self.nodes[place] = node;
            return place;
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn link(&mut self, parent: usize, first: TokenId, child: usize) {
        let children = &mut self.nodes[parent].children;
        match children.binary_search_by_key(&first, |(token, _)| *token) {
            Ok(place) => children[place].1 = child,
            Err(place) => children.insert(place, (first, child)),
        }
    }

    /// Inserts a new node above `at` that takes the first `num_tokens` tokens of its edge.
    fn split(&mut self, at: usize, num_tokens: usize) -> usize {
        let node = &mut self.nodes[at];
        let edge: Vec<TokenId> = node.edge.drain(..num_tokens).collect();
        let (first, below, parent) = (edge[0], node.edge[0], node.parent);
        let caches = node.caches.clone();
        let upper = self.add(Node { parent, edge, children: vec![(below, at)], caches });
        self.nodes[at].parent = upper;
        self.link(parent, first, upper);
        upper
    }

    /// Removes a node without caches; it has no children, because those would have caches.
    fn discard(&mut self, at: usize) {
        let node = std::mem::take(&mut self.nodes[at]);
        assert!(node.children.is_empty(), "children of a node without caches have none");
        self.num_tokens -= node.edge.len();
        let children = &mut self.nodes[node.parent].children;
        let place = children.binary_search_by_key(&node.edge[0], |(token, _)| *token);
        children.remove(place.expect("a parent knows its child"));
        self.vacant.push(at);
    }

    /// Merges `at` with its only child, if every cache continues to the child.
    fn join(&mut self, at: usize) {
        let [(_, child)] = self.nodes[at].children[..] else { return };
        if self.nodes[child].caches.len() < self.nodes[at].caches.len() {
            return;
        }
        let upper = std::mem::take(&mut self.nodes[at]);
        let first = upper.edge[0];
        let lower = &mut self.nodes[child];
        lower.edge.splice(..0, upper.edge);
        lower.parent = upper.parent;
        self.link(upper.parent, first, child);
        self.vacant.push(at);
    }
}

/// Returns the number of equal leading tokens.
fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    // Whole blocks are compared at memory speed.
    const BLOCK: usize = 64;
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let num_equal =
        a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK)).take_while(|(a, b)| a == b).count();
    let start = num_equal * BLOCK;
    let tail = a[start..].iter().zip(&b[start..]).take_while(|(a, b)| a == b).count();
    start + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the index with a list that is searched linearly.
    #[test]
    fn the_index_finds_what_a_plain_search_finds() {
        let mut rng = crate::simulation::Rng::new(11);
        for _ in 0..300 {
            let mut index = PrefixIndex::new();
            let mut plain: Vec<(CacheId, Vec<TokenId>)> = Vec::new();
            for step in 0..60 {
                if rng.below(3) == 0 && !plain.is_empty() {
                    let (cache, _) = plain.swap_remove(rng.below(plain.len()));
                    index.remove(cache);
                } else {
                    let tokens = random_tokens(&mut rng);
                    index.insert(CacheId(step), &tokens);
                    plain.push((CacheId(step), tokens));
                }
                check(&index, &plain, &random_tokens(&mut rng));
            }
            plain.iter().for_each(|(cache, _)| index.remove(*cache));
            assert_eq!(index.num_tokens(), 0);
            assert_eq!(index.nodes.len() - index.vacant.len(), 1, "only the root stays");
        }
    }

    fn random_tokens(rng: &mut crate::simulation::Rng) -> Vec<TokenId> {
        (0..1 + rng.below(12)).map(|_| rng.below(2) as TokenId).collect()
    }

    fn check(index: &PrefixIndex, plain: &[(CacheId, Vec<TokenId>)], wanted: &[TokenId]) {
        let shared: HashMap<CacheId, usize> =
            plain.iter().map(|(cache, tokens)| (*cache, common_prefix(tokens, wanted))).collect();
        let matches = index.matches(wanted);
        assert_eq!(
            matches.first().map_or(0, |it| it.num_tokens),
            shared.values().copied().max().unwrap_or(0)
        );
        for it in matches {
            let mut found = it.caches.to_vec();
            found.sort();
            let mut expected: Vec<CacheId> = shared.keys().copied().collect();
            expected.retain(|cache| it.num_tokens <= shared[cache]);
            expected.sort();
            assert_eq!(found, expected, "sharing {} tokens of {wanted:?}", it.num_tokens);
        }
        let distinct: std::collections::HashSet<&[TokenId]> = plain
            .iter()
            .flat_map(|(_, tokens)| (1..=tokens.len()).map(move |end| &tokens[..end]))
            .collect();
        assert_eq!(index.num_tokens(), distinct.len());
    }

    #[test]
    fn the_common_prefix_is_found_across_blocks() {
        let long: Vec<TokenId> = (0..1000).collect();
        for len in [0, 1, 63, 64, 65, 128, 500, 999] {
            let mut other = long.clone();
            other[len] = 7777;
            assert_eq!(common_prefix(&long, &other), len);
            assert_eq!(common_prefix(&long, &long[..len]), len);
        }
    }
}

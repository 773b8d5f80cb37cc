//! Compares streaming stop strings with a search in the complete text.

use jackalope_text::{StopStrings, Stopped};
use proptest::prelude::*;

/// Cuts the complete text: at the match that ends first, then the longest, then the first listed.
fn cut(text: &str, stops: &[String]) -> (String, Option<usize>) {
    cut_after(0, text, stops)
}

/// Like [`cut`], at a match that ends after this number of bytes.
fn cut_after(num_bytes: usize, text: &str, stops: &[String]) -> (String, Option<usize>) {
    let mut best: Option<(usize, usize, usize)> = None;
    for (stop_idx, stop) in stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty()) {
        let mut starts = text.char_indices().map(|(start, _)| start);
        let is_match =
            |start: &usize| text[*start..].starts_with(stop) && num_bytes < start + stop.len();
        if let Some(start) = starts.find(is_match) {
            let found = (start + stop.len(), start, stop_idx);
            best = Some(best.map_or(found, |best| best.min(found)));
        }
    }
    match best {
        Some((_, start, stop_idx)) => (text[..start].to_owned(), Some(stop_idx)),
        None => (text.to_owned(), None),
    }
}

/// Cuts the text in pieces.
fn cut_streaming(pieces: &[String], stops: &[String]) -> (String, Option<usize>) {
    cut_streaming_after(0, pieces, stops)
}

/// Like [`cut_streaming`], but these first pieces complete no stop string.
fn cut_streaming_after(
    num_pieces: usize,
    pieces: &[String],
    stops: &[String],
) -> (String, Option<usize>) {
    let mut watcher = StopStrings::new(stops.to_vec());
    let mut text = String::new();
    let mut hit = None;
    for (idx, piece) in pieces.iter().enumerate() {
        let Stopped { text: settled, hit: now } = watcher.push(piece, num_pieces <= idx);
        assert!(hit.is_none() || (settled.is_empty() && now.is_none()), "text after the end");
        text.push_str(&settled);
        hit = hit.or(now);
    }
    text.push_str(&watcher.finish());
    (text, hit)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn a_text_in_pieces_is_cut_like_the_whole_text(
        // Few letters, so that almost every text nearly has a stop string.
        pieces in prop::collection::vec("[abé ]{0,6}", 0..8),
        stops in prop::collection::vec("[abé ]{0,5}", 0..4),
    ) {
        prop_assert_eq!(cut_streaming(&pieces, &stops), cut(&pieces.concat(), &stops));
    }

    #[test]
    fn a_stop_string_counts_only_if_a_later_piece_completes_it(
        pieces in prop::collection::vec("[abé ]{0,6}", 0..8),
        stops in prop::collection::vec("[abé ]{0,5}", 0..4),
        num_pieces in 0_usize..8,
    ) {
        let num_pieces = num_pieces.min(pieces.len());
        let num_bytes = pieces[..num_pieces].concat().len();
        let expected = cut_after(num_bytes, &pieces.concat(), &stops);
        prop_assert_eq!(cut_streaming_after(num_pieces, &pieces, &stops), expected);
    }

    #[test]
    fn no_more_is_held_back_than_may_become_a_stop_string(
        pieces in prop::collection::vec("[abé ]{0,6}", 1..8),
        stops in prop::collection::vec("[abé ]{1,5}", 1..4),
    ) {
        let mut watcher = StopStrings::new(stops.clone());
        let mut whole = String::new();
        let mut out = String::new();
        for piece in &pieces {
            whole.push_str(piece);
            let stopped = watcher.push(piece, true);
            if stopped.hit.is_some() {
                break;
            }
            out.push_str(&stopped.text);
            let held = &whole[out.len()..];
            let may_become = |held: &str| stops.iter().any(|stop| stop.starts_with(held));
            prop_assert!(held.is_empty() || may_become(held), "held {:?}", held);
            // Nor less: whatever longer end of the text may become one.
            for (idx, _) in whole.char_indices().take_while(|(idx, _)| *idx < out.len()) {
                prop_assert!(!may_become(&whole[idx..]), "let go of {:?}", &whole[idx..]);
            }
        }
    }
}

#[test]
fn every_stop_string_of_two_letters_is_found_in_every_text() {
    let word = |bits: u32, len: u32| -> String {
        (0..len).map(|idx| if bits >> idx & 1 == 1 { 'a' } else { 'b' }).collect()
    };
    // Seven letters are the fewest whose ends are beginnings in every way there is.
    for stop in (0..1 << 7).map(|bits| word(bits, 7)) {
        let stops = [stop];
        for text in (0..1 << 11).map(|bits| word(bits, 11)) {
            assert_eq!(
                cut_streaming(std::slice::from_ref(&text), &stops),
                cut(&text, &stops),
                "{text}"
            );
        }
    }
}

#[test]
fn a_stop_string_across_three_tokens_is_found() {
    let pieces = ["Hello ", "wor", "ld<|im", "_e", "nd|> more"].map(str::to_owned);
    let stops = ["<|im_end|>".to_owned(), "nothing".to_owned()];
    assert_eq!(cut_streaming(&pieces, &stops), ("Hello world".to_owned(), Some(0)));
}

#[test]
fn a_beginning_that_leads_nowhere_is_passed_on() {
    let mut watcher = StopStrings::new(vec!["\n\nUser:".to_owned()]);
    assert_eq!(watcher.push("one\n\nUse", true).text, "one");
    assert_eq!(watcher.push("ful", true).text, "\n\nUseful");
    assert_eq!(watcher.push(" \n", true).text, " ");
    assert_eq!(watcher.finish(), "\n");
}

#[test]
fn empty_stop_strings_never_match() {
    let stops = [String::new(), "b".to_owned()];
    assert_eq!(cut_streaming(&["abc".to_owned()], &stops), ("a".to_owned(), Some(1)));
    assert_eq!(cut_streaming(&["abc".to_owned()], &stops[..1]), ("abc".to_owned(), None));
}

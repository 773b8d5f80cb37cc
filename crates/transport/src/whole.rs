//! Small messages: one frame to and from each peer.

use crate::error::Message;
use crate::fault::Stop;
use crate::lane::Lane;
use crate::wait::Wait;

/// Sends `frame` on every lane and receives the frame `expected` on every lane; either may be
/// `None`.
pub(crate) fn exchange(
    lanes: &mut [Lane],
    frame: Option<&[u8]>,
    expected: Option<Message>,
    wait: &mut Wait<'_>,
) -> Result<(), Stop> {
    if let Some(frame) = frame {
        for lane in lanes.iter_mut() {
            lane.begin_push_whole(frame.len());
            lane.push_whole(frame)?;
        }
    }
    if let Some(expected) = expected {
        for lane in lanes.iter_mut() {
            lane.begin_pull_whole(expected)?;
        }
    }
    loop {
        let mut moved = false;
        let mut done = true;
        for lane in lanes.iter_mut() {
            moved |= lane.push_whole(frame.unwrap_or_default())?;
            moved |= lane.pull_whole()?;
            done &= lane.is_sent() && lane.is_received();
        }
        if done {
            wait.progressed();
            return Ok(());
        }
        if moved { wait.progressed() } else { wait.stalled(lanes)? }
    }
}

/// Sends `frame` on one lane, and meanwhile receives early messages on all lanes.
pub(crate) fn send(
    lanes: &mut [Lane],
    lane_idx: usize,
    frame: &[u8],
    wait: &mut Wait<'_>,
) -> Result<(), Stop> {
    lanes[lane_idx].begin_push_whole(frame.len());
    loop {
        let moved = lanes[lane_idx].push_whole(frame)?;
        if lanes[lane_idx].is_sent() {
            wait.progressed();
            return Ok(());
        }
        if moved || pull_early(lanes)? { wait.progressed() } else { wait.stalled(lanes)? }
    }
}

/// Makes one round of receiving messages that have not been requested yet. Returns whether any byte
/// moved.
pub(crate) fn pull_early(lanes: &mut [Lane]) -> Result<bool, Stop> {
    let mut moved = false;
    for lane in lanes {
        moved |= lane.pull_early()?;
    }
    Ok(moved)
}

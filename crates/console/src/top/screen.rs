//! The screen of `top`: title, speed, queue, cache, ranks. Narrow terminals get fewer columns.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, LineGauge, Paragraph, Row, Sparkline, Table};

use super::Watch;
use super::overview::RankRow;

/// Height of the curve of speeds, with its frame.
const SPEED_ROWS: u16 = 7;

/// Minimum width of the terminal, and the number of columns of the table from that width on.
const COLUMNS_BY_WIDTH: [(u16, usize); 5] = [(128, 10), (104, 9), (80, 7), (60, 4), (0, 3)];

/// Colours, or none.
struct Palette {
    has_colors: bool,
}

impl Palette {
    fn color(&self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }
}

/// Draws one frame of `jackalope top`.
pub(super) fn draw(frame: &mut Frame<'_>, watch: &Watch, has_colors: bool) {
    let palette = Palette { has_colors };
    let overview = &watch.overview;
    let machines = overview.machines.join("; ");
    let machines = Some(machines).filter(|it| !it.is_empty());
    let num_notes = overview.links.len() + machines.iter().len() + overview.others.len() + 1;
    let rows = [
        Constraint::Length(1),
        Constraint::Length(SPEED_ROWS),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(u16::try_from(num_notes).unwrap_or(u16::MAX).min(6)),
    ];
    let [title, speed, running, waiting, cache, ranks, notes] =
        Layout::vertical(rows).areas(frame.area());
    let state = if overview.status == "healthy" { Color::Green } else { Color::Yellow };
    frame.render_widget(Paragraph::new(overview.title()).style(palette.color(state)), title);
    draw_speed(frame, speed, watch, &palette);
    let gauges = [
        (running, "running", overview.running, overview.running_max),
        (waiting, "waiting", overview.waiting, overview.waiting_max),
        (cache, "KV cache", overview.kv_used_bytes, overview.kv_budget_bytes),
    ];
    for (area, name, used, max) in gauges {
        let ratio = if max == 0 { 0.0 } else { (used as f64 / max as f64).clamp(0.0, 1.0) };
        let label = match name {
            "KV cache" => format!("{name:<9}{:>5.1} %", 100.0 * ratio),
            _ => format!("{name:<9}{used:>3} of {max}"),
        };
        let full = if ratio < 0.8 { Color::Cyan } else { Color::Red };
        let gauge = LineGauge::default().ratio(ratio).label(label);
        frame.render_widget(gauge.filled_style(palette.color(full)), area);
    }
    draw_ranks(frame, ranks, watch, &palette);
    let failure = watch.failure.as_ref().map(|it| it.replace('\n', "; "));
    let keys = failure.unwrap_or_else(|| format!("{}; q quits", overview.counters()));
    let lines =
        overview.links.iter().chain(&overview.others).cloned().chain(machines).chain([keys]);
    let lines: Vec<Line<'_>> = lines.map(Line::from).collect();
    let style = if watch.failure.is_some() || !overview.links.is_empty() {
        palette.color(Color::Red)
    } else {
        Style::new()
    };
    frame.render_widget(Paragraph::new(lines).style(style), notes);
}

fn draw_speed(frame: &mut Frame<'_>, area: Rect, watch: &Watch, palette: &Palette) {
    let now = watch.speeds.back().copied().unwrap_or_default();
    let peak = watch.overview.peak_speed;
    let block = Block::bordered().title(format!(" {now:.1} tokens/s, peak {peak:.1} "));
    let width = usize::from(area.width.saturating_sub(2));
    let skipped = watch.speeds.len().saturating_sub(width);
    let speeds = watch.speeds.iter().skip(skipped).map(|it| it.round() as u64);
    let curve = Sparkline::default().data(speeds).style(palette.color(Color::Cyan));
    frame.render_widget(curve.block(block), area);
}

fn draw_ranks(frame: &mut Frame<'_>, area: Rect, watch: &Watch, palette: &Palette) {
    let fitting = COLUMNS_BY_WIDTH.iter().find(|(width, _)| *width <= area.width);
    let num_columns = fitting.map_or(1, |(_, columns)| *columns);
    let cells = |rank: &RankRow| rank.cells().into_iter().take(num_columns).collect::<Vec<_>>();
    let row = |rank: &RankRow| {
        let is_well = rank.silent_ms < 5000;
        let style = if is_well { Style::new() } else { palette.color(Color::Red) };
        Row::new(cells(rank)).style(style)
    };
    let heads = RankRow::HEADS.into_iter().take(num_columns);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    // No column is wider than its longest text and a space; ratatui divides what is left equally.
    let widths = (0..num_columns).map(|column| {
        let all = watch.overview.ranks.iter().map(|it| it.cells()[column].chars().count());
        let width = all.chain([RankRow::HEADS[column].len()]).max().unwrap_or(1);
        Constraint::Max(u16::try_from(width + 1).unwrap_or(u16::MAX))
    });
    let table = Table::new(watch.overview.ranks.iter().map(row), widths)
        .header(Row::new(heads).style(bold))
        .block(Block::bordered());
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::overview::tests::overview;

    fn shown(width: u16, height: u16, has_colors: bool) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let speeds = [10.0, 20.0, 41.5].into();
        let watch = Watch { overview: overview(), speeds, ..Watch::default() };
        terminal.draw(|frame| draw(frame, &watch, has_colors)).unwrap();
        terminal
    }

    fn text(width: u16, height: u16) -> String {
        let buffer = shown(width, height, true).backend().buffer().clone();
        buffer.content().iter().map(|cell| cell.symbol()).collect()
    }

    #[test]
    fn a_screen_shows_speed_queue_cache_ranks_and_links() {
        let wide = text(150, 30);
        assert!(wide.contains("transport") && wide.contains("jaccl rdma_en5 rdma_en4"), "{wide}");
        let text = text(120, 30);
        for part in [
            "org/m",
            "41.5 tokens/s, peak 60.0",
            "2 of 64",
            "3 of 256",
            "KV cache",
            "rank 0",
            "mac1",
            "layers 0–3, heads 0–7",
            "silent 9 s",
            "a and b do not reach",
            "mac1: 71 °C, CPU 65 W, GPU 591 W, GPU 98 %; here: normal, GPU 0 %",
            "org/n: unloaded",
            "q quits",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn a_screen_of_any_size_can_be_rendered() {
        for (width, height) in [(1, 1), (10, 3), (40, 12), (59, 24), (80, 10), (300, 100)] {
            text(width, height);
        }
        assert!(text(40, 24).contains("rank 1"));
    }

    #[test]
    fn no_color_is_no_color() {
        let colors = |has_colors: bool| {
            let terminal = shown(80, 24, has_colors);
            let cells = terminal.backend().buffer().content().to_vec();
            cells.iter().filter(|it| it.fg != Color::Reset).count()
        };
        assert_eq!(colors(false), 0);
        assert!(0 < colors(true));
    }
}

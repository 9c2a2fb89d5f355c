//! The chart: cost of each server relative to the floor, on a logarithmic scale.
//!
//! It paints its background and follows the reader's colour scheme, so it is readable anywhere.

use crate::report::{ReportRow, RowGoal, RunReport};

/// Width of the picture, and horizontal range of the bars.
const WIDTH: f64 = 920.0;
const LEFT: f64 = 290.0;
const RIGHT: f64 = 760.0;
/// Heights of a bar, of the gap below a group, and of the area above the first group.
const BAR: f64 = 13.0;
const GAP: f64 = 14.0;
const TOP: f64 = 92.0;

/// Renders the rows that have a reference.
pub(crate) fn render_svg(report: &RunReport) -> String {
    let groups: Vec<BarGroup> = report
        .rows
        .iter()
        .filter_map(|row| BarGroup::new(row, &report.targets))
        .collect();
    let scale = LogScale::covering(groups.iter().flat_map(BarGroup::costs));
    let bars = groups.iter().map(|group| group.bars.len()).sum::<usize>();
    let bottom = TOP + bars as f64 * BAR + groups.len() as f64 * GAP;
    let height = bottom + 46.0;

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{TITLE}\">\n{STYLE}\n\
         <rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n",
        WIDTH - 1.0,
        height - 1.0
    );
    svg.push_str(&text_element("title", 20.0, 30.0, TITLE));
    svg.push_str(&text_element("note", 20.0, 50.0, SUBTITLE));
    push_legend(&mut svg, &report.targets);
    for (cost, label) in scale.ticks() {
        let x = LEFT + scale.position(cost) * (RIGHT - LEFT);
        let class = if label == "1×" { "one" } else { "grid" };
        let y = TOP - 6.0;
        svg.push_str(&format!(
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{y}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\n"
        ));
        svg.push_str(&text_element("tick", x, bottom + 14.0, &label));
    }
    let mut y = TOP;
    for group in &groups {
        group.draw(&mut svg, &scale, y);
        y += group.bars.len() as f64 * BAR + GAP;
    }
    svg.push_str(&text_element(
        "note",
        20.0,
        bottom + 34.0,
        &report.machine.summary(),
    ));
    svg.push_str("</svg>\n");
    svg
}

fn push_legend(svg: &mut String, targets: &[String]) {
    let names = std::iter::once("floor or limit").chain(targets.iter().map(String::as_str));
    let mut x = 20.0;
    for (index, name) in names.enumerate() {
        let class = series_class(index);
        svg.push_str(&format!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"62\" width=\"12\" height=\"12\" rx=\"2\"/>\n"
        ));
        svg.push_str(&text_element("label", x + 18.0, 72.0, name));
        x += 44.0 + 7.5 * name.chars().count() as f64;
    }
}

/// Returns a text element; `content` is escaped.
fn text_element(class: &str, x: f64, y: f64, content: &str) -> String {
    format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>\n",
        escape_xml(content)
    )
}

/// Escapes markup, also for use inside attributes.
fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML 1.0 cannot represent other control characters.
            control if control.is_control() => escaped.push(' '),
            plain => escaped.push(plain),
        }
    }
    escaped
}

const TITLE: &str = "exec-server: cost relative to the floor of the machine";
const SUBTITLE: &str = "Shorter is better; logarithmic. Without a floor, the reference is the stock server or our limit.";

const STYLE: &str = "<style>\
text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}\
.card{fill:#ffffff;stroke:#d1d9e0}.title{font-size:17px;font-weight:600}\
.note{font-size:12px;fill:#59636e}.label{font-size:12px}.name{font-size:12px;text-anchor:end}\
.value{font-size:10.5px;paint-order:stroke;stroke:#ffffff;stroke-width:3px}\
.tick{font-size:11px;fill:#59636e;text-anchor:middle}\
.grid{stroke:#d1d9e0}.one{stroke:#59636e;stroke-dasharray:3 3}\
.c0{fill:#9aa4af}.c1{fill:#0969da}.c2{fill:#e16f24}.c3{fill:#8250df}.c4{fill:#1a7f37}\
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.card{fill:#0d1117;stroke:#3d444d}\
.value{stroke:#0d1117}.note,.tick{fill:#9198a1}.grid{stroke:#3d444d}.one{stroke:#9198a1}\
.c0{fill:#6e7781}.c1{fill:#4493f8}.c2{fill:#f0883e}.c3{fill:#ab7df8}.c4{fill:#3fb950}}\
</style>";

/// Bars of one row: the reference first, then one bar per target with a value.
#[derive(Debug)]
struct BarGroup {
    title: String,
    /// The bars, from top to bottom.
    bars: Vec<ChartBar>,
}

/// One bar.
#[derive(Debug)]
struct ChartBar {
    /// Index of the colour; 0 is the reference.
    series: usize,
    /// Multiple of the reference; higher is always worse.
    cost: f64,
    label: String,
}

impl BarGroup {
    /// Creates the bars of a row; `None` without a reference or without values.
    fn new(row: &ReportRow, targets: &[String]) -> Option<Self> {
        let limit = match row.goal {
            Some(RowGoal::AtMost(limit) | RowGoal::AtLeast(limit)) => Some(limit),
            Some(
                RowGoal::RatioAtMost(_)
                | RowGoal::RatioAtLeast(_)
                | RowGoal::StockAtMost(_)
                | RowGoal::StockAtLeast(_),
            )
            | None => None,
        };
        let (reference, label) = match (row.reference(), limit) {
            // The stock server already has a bar.
            (Some(stock), _) if row.floor.is_none() => (stock, None),
            (Some(floor), _) => (floor, Some(row.unit.format(floor))),
            (None, Some(limit)) if limit > 0.0 => {
                (limit, Some(format!("limit {}", row.unit.format(limit))))
            }
            (None, _) => return None,
        };
        let mut bars: Vec<ChartBar> = label
            .into_iter()
            .map(|label| ChartBar {
                series: 0,
                cost: 1.0,
                label,
            })
            .collect();
        for index in 0..targets.len() {
            let Some(value) = row.cells.get(index).and_then(|cell| cell.value()) else {
                continue;
            };
            let cost = if row.unit.higher_is_better() {
                reference / value
            } else {
                value / reference
            };
            let label = format!("{} · {}", row.format_cell(index), cost_label(cost));
            bars.push(ChartBar {
                series: index + 1,
                cost,
                label,
            });
        }
        (bars.len() > 1).then(|| Self {
            title: row.title.trim().to_owned(),
            bars,
        })
    }

    /// Returns the costs of the bars.
    fn costs(&self) -> impl Iterator<Item = f64> {
        self.bars.iter().map(|bar| bar.cost)
    }

    /// Draws the group with its upper edge at `y`.
    fn draw(&self, svg: &mut String, scale: &LogScale, y: f64) {
        let middle = y + self.bars.len() as f64 * BAR / 2.0 + 4.0;
        svg.push_str(&text_element("name", LEFT - 12.0, middle, &self.title));
        for (index, bar) in self.bars.iter().enumerate() {
            let y = y + index as f64 * BAR;
            let width = (scale.position(bar.cost) * (RIGHT - LEFT)).max(2.0);
            svg.push_str(&format!(
                "<rect class=\"{}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{width:.1}\" \
                 height=\"{:.1}\" rx=\"2\"/>\n",
                series_class(bar.series),
                y + 1.0,
                BAR - 2.0
            ));
            svg.push_str(&text_element(
                "value",
                LEFT + width + 6.0,
                y + BAR - 3.0,
                &bar.label,
            ));
        }
    }
}

/// Returns the style class of a series; there are four colours for targets.
fn series_class(series: usize) -> String {
    let colour = if series == 0 { 0 } else { (series - 1) % 4 + 1 };
    format!("c{colour}")
}

fn cost_label(cost: f64) -> String {
    if cost < 10.0 {
        format!("{cost:.2}×")
    } else {
        format!("{cost:.0}×")
    }
}

/// A logarithmic axis over whole decades.
#[derive(Debug, PartialEq)]
struct LogScale {
    low: f64,
    high: f64,
}

impl LogScale {
    /// Creates a scale for `costs`: it covers at least 0.1 to 10 and starts at 0.01 or above.
    fn covering(costs: impl Iterator<Item = f64>) -> Self {
        let mut scale = Self {
            low: -1.0,
            high: 1.0,
        };
        for cost in costs.filter(|cost| cost.is_finite() && *cost > 0.0) {
            scale.low = scale.low.min(cost.log10().floor()).max(-2.0);
            scale.high = scale.high.max(cost.log10().ceil());
        }
        scale
    }

    /// Returns the position of a cost, from 0 to 1. Clamps costs outside of the scale.
    fn position(&self, cost: f64) -> f64 {
        let decades = cost.max(f64::MIN_POSITIVE).log10();
        ((decades - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Returns the decades with their labels.
    fn ticks(&self) -> Vec<(f64, String)> {
        let mut ticks = Vec::new();
        let mut decade = self.low;
        while decade <= self.high {
            let cost = 10_f64.powf(decade);
            ticks.push((cost, format!("{}×", (cost * 100.0).round() / 100.0)));
            decade += 1.0;
        }
        ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{MachineInfo, ReportCell, ValueUnit};

    #[test]
    fn text_is_escaped() {
        assert_eq!(
            escape_xml("<a & \"b\">\u{1}"),
            "&lt;a &amp; &quot;b&quot;&gt; "
        );
    }

    #[test]
    fn hostile_names_are_escaped_in_svg() {
        let row = ReportRow::new("x", "</text><script>", ValueUnit::Bytes)
            .goal(RowGoal::AtMost(2.0))
            .cells(&[ReportCell::Value(0.0), ReportCell::Failed(String::new())]);
        let machine = MachineInfo {
            cpu: "<cpu>".to_owned(),
            cores: 1,
            memory: 0,
            kernel: "&".to_owned(),
        };
        let targets = vec!["a<b".to_owned(), "c".to_owned()];
        let svg = render_svg(&RunReport {
            machine,
            quick: true,
            targets,
            rows: vec![row],
        });
        assert!(!svg.contains("<script>") && !svg.contains("<cpu>") && !svg.contains("a<b"));
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn longer_bar_means_higher_cost() {
        let targets = ["a".to_owned(), "b".to_owned()];
        let row = |unit| {
            let row = ReportRow::new("x", "x", unit).floor(&ReportCell::Value(10.0));
            row.cells(&[ReportCell::Skipped(String::new()), ReportCell::Value(5.0)])
        };
        let rate = BarGroup::new(&row(ValueUnit::PerSecond), &targets).unwrap();
        assert_eq!(rate.costs().collect::<Vec<_>>(), [1.0, 2.0]);
        assert_eq!(rate.bars[1].series, 2);
        let time = BarGroup::new(&row(ValueUnit::Seconds), &targets).unwrap();
        assert_eq!(time.costs().collect::<Vec<_>>(), [1.0, 0.5]);
    }

    #[test]
    fn stock_reference_has_one_bar() {
        let row = ReportRow {
            stock: Some(1),
            ..ReportRow::new("x", "x", ValueUnit::PerSecond)
        };
        let row = row.cells(&[ReportCell::Value(8.0), ReportCell::Value(2.0)]);
        let group = BarGroup::new(&row, &["a".to_owned(), "b".to_owned()]).unwrap();
        assert_eq!(group.costs().collect::<Vec<_>>(), [0.25, 1.0]);
        assert_eq!(group.bars[1].series, 2);
    }

    #[test]
    fn row_without_reference_has_no_bars() {
        let row = ReportRow::new("x", "x", ValueUnit::Bytes).cells(&[ReportCell::Value(5.0)]);
        assert!(BarGroup::new(&row, &["a".to_owned()]).is_none());
    }

    #[test]
    fn scale_grows_in_whole_decades() {
        assert_eq!(
            LogScale::covering([].into_iter()),
            LogScale {
                low: -1.0,
                high: 1.0
            }
        );
        let scale = LogScale::covering([0.0, 0.02, 480.0].into_iter());
        assert_eq!(
            scale,
            LogScale {
                low: -2.0,
                high: 3.0
            }
        );
        let labels: Vec<String> = scale.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["0.01×", "0.1×", "1×", "10×", "100×", "1000×"]);
    }

    #[test]
    fn positions_are_clamped_to_the_scale() {
        let scale = LogScale {
            low: -1.0,
            high: 1.0,
        };
        assert_eq!(scale.position(0.0), 0.0);
        assert_eq!(scale.position(1.0), 0.5);
        assert_eq!(scale.position(1e9), 1.0);
    }
}

//! The chart: what each server costs, relative to the floor, on a logarithmic scale.
//! It paints its own background and follows the reader's colour scheme, so it is readable anywhere.

mod chart;
mod scale;

use super::Report;
use chart::Group;
use scale::Scale;

/// Width of the picture, and where the bars begin and end.
const WIDTH: f64 = 920.0;
const LEFT: f64 = 290.0;
const RIGHT: f64 = 760.0;
/// Heights of a bar, of the gap below a group, and of what is above the first group.
const BAR: f64 = 13.0;
const GAP: f64 = 14.0;
const TOP: f64 = 92.0;

/// Renders the rows that can be compared.
pub(crate) fn render(report: &Report) -> String {
    let groups: Vec<Group> = report
        .rows
        .iter()
        .filter_map(|row| Group::new(row, &report.targets))
        .collect();
    let scale = Scale::over(groups.iter().flat_map(Group::costs));
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
    svg.push_str(&text("title", 20.0, 30.0, TITLE));
    svg.push_str(&text("note", 20.0, 50.0, SUBTITLE));
    legend(&mut svg, &report.targets);
    for (cost, label) in scale.ticks() {
        let x = LEFT + scale.position(cost) * (RIGHT - LEFT);
        let class = if label == "1×" { "one" } else { "grid" };
        let y = TOP - 6.0;
        svg.push_str(&format!(
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{y}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\n"
        ));
        svg.push_str(&text("tick", x, bottom + 14.0, &label));
    }
    let mut y = TOP;
    for group in &groups {
        group.draw(&mut svg, &scale, y);
        y += group.bars.len() as f64 * BAR + GAP;
    }
    svg.push_str(&text("note", 20.0, bottom + 34.0, &report.machine.show()));
    svg.push_str("</svg>\n");
    svg
}

fn legend(svg: &mut String, targets: &[String]) {
    let names = std::iter::once("floor or limit").chain(targets.iter().map(String::as_str));
    let mut x = 20.0;
    for (at, name) in names.enumerate() {
        let class = chart::class(at);
        svg.push_str(&format!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"62\" width=\"12\" height=\"12\" rx=\"2\"/>\n"
        ));
        svg.push_str(&text("label", x + 18.0, 72.0, name));
        x += 44.0 + 7.5 * name.chars().count() as f64;
    }
}

/// Returns a text element; `content` is escaped.
fn text(class: &str, x: f64, y: f64, content: &str) -> String {
    format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>\n",
        escape(content)
    )
}

/// Keeps text from being read as markup, also inside attributes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML 1.0 has no way to write other control characters.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Cell, Machine, Reach, Row, Unit};

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("<a & \"b\">\u{1}"), "&lt;a &amp; &quot;b&quot;&gt; ");
    }

    #[test]
    fn hostile_names_are_escaped_in_svg() {
        let row = Row::new("x", "</text><script>", Unit::Bytes)
            .reach(Reach::AtMost(2.0))
            .cells(&[Cell::Value(0.0), Cell::Failed(String::new())]);
        let machine = Machine {
            cpu: "<cpu>".to_owned(),
            cores: 1,
            memory: 0,
            kernel: "&".to_owned(),
        };
        let targets = vec!["a<b".to_owned(), "c".to_owned()];
        let svg = render(&Report {
            machine,
            quick: true,
            targets,
            rows: vec![row],
        });
        assert!(!svg.contains("<script>") && !svg.contains("<cpu>") && !svg.contains("a<b"));
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}

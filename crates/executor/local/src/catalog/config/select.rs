//! Selected keys of a layer.

use toml::{Table, Value};

/// Returns what the paths select, in the order of the layer.
///
/// Where a path goes on below something that is no table, that something is selected: it stands in the
/// way of tables in lower layers. Where it goes on below a table that has no such key, the table is
/// selected and empty.
pub(super) fn selected(layer: &Table, paths: &[Vec<String>]) -> Table {
    let paths: Vec<&[String]> = paths.iter().map(Vec::as_slice).collect();
    below(layer, &paths)
}

fn below(table: &Table, paths: &[&[String]]) -> Table {
    let mut found = Table::new();
    for (key, value) in table {
        let with_key = paths.iter().filter(|path| path.first() == Some(key));
        let rests: Vec<&[String]> = with_key.map(|path| &path[1..]).collect();
        if rests.is_empty() {
            continue;
        }
        let is_whole = rests.iter().any(|rest| rest.is_empty());
        let value = match value.as_table() {
            Some(inner) if !is_whole => Value::Table(below(inner, &rests)),
            Some(_) | None => value.clone(),
        };
        found.insert(key.clone(), value);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: &str = r#"
zeta = 1
alpha = "a"
[servers."do.tted"]
command = "x"
args = ["a", "b"]
env = { A = "1", B = "2" }
[[hooks.stop]]
c = 1
"#;

    fn select(paths: &[&[&str]]) -> String {
        let keys = |path: &&[&str]| path.iter().map(|&key| key.to_owned()).collect();
        let paths: Vec<Vec<String>> = paths.iter().map(keys).collect();
        let layer = toml::from_str(LAYER).unwrap();
        toml::to_string(&selected(&layer, &paths)).unwrap()
    }

    #[test]
    fn keys_are_literal_and_keep_the_order_of_the_layer() {
        assert_eq!(
            select(&[&["alpha"], &["zeta"]]),
            "zeta = 1\nalpha = \"a\"\n"
        );
        let args = "[servers.\"do.tted\"]\nargs = [\"a\", \"b\"]\n";
        assert_eq!(select(&[&["servers", "do.tted", "args"]]), args);
        assert_eq!(select(&[&["servers.do"]]), "");
        assert_eq!(select(&[&[""]]), "");
    }

    #[test]
    fn inline_tables_and_arrays_of_tables_are_written_as_tables() {
        let env = "[servers.\"do.tted\".env]\nB = \"2\"\n";
        assert_eq!(select(&[&["servers", "do.tted", "env", "B"]]), env);
        assert_eq!(select(&[&["hooks"]]), "[[hooks.stop]]\nc = 1\n");
    }

    #[test]
    fn a_whole_table_wins_over_a_part_of_it() {
        let whole = select(&[&["servers"]]);
        assert_eq!(
            select(&[&["servers", "do.tted", "args"], &["servers"]]),
            whole
        );
    }

    #[test]
    fn what_stands_in_the_way_is_selected() {
        assert_eq!(select(&[&["alpha", "below"]]), "alpha = \"a\"\n");
        assert_eq!(
            select(&[&["hooks", "stop", "0"]]),
            "[[hooks.stop]]\nc = 1\n"
        );
        assert_eq!(select(&[&["servers", "other", "args"]]), "[servers]\n");
    }
}

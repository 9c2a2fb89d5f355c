//! The last lines of output that came in pieces of several streams.

use super::Piece;

/// Keeps the last `lines` lines, in whichever streams they are. A last line without an end is one.
pub(super) fn last_lines(mut pieces: Vec<Piece>, lines: usize) -> Vec<Piece> {
    if lines == 0 {
        return Vec::new();
    }
    let mut left = lines;
    let mut last = true;
    for index in (0..pieces.len()).rev() {
        let data = &pieces[index].1;
        let ends = data
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, byte)| **byte == b'\n');
        for (end, _) in ends {
            // The end of the last line of all begins no other.
            if std::mem::take(&mut last) && end + 1 == data.len() {
                continue;
            }
            left -= 1;
            if left == 0 {
                let rest = data.slice(end + 1..);
                pieces[index].1 = rest;
                pieces.drain(..index);
                pieces.retain(|(_, data)| !data.is_empty());
                return pieces;
            }
        }
        last &= data.is_empty();
    }
    pieces
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use exec_wire::process::OutputStream::{self, Stderr, Stdout};

    use super::*;

    fn pieces(texts: &[(OutputStream, &'static str)]) -> Vec<Piece> {
        let piece = |(stream, text): &(OutputStream, &'static str)| (*stream, Bytes::from(*text));
        texts.iter().map(piece).collect()
    }

    #[test]
    fn the_last_lines_are_counted_across_pieces() {
        let all = pieces(&[
            (Stdout, "one\ntw"),
            (Stdout, "o\nthree\n"),
            (Stderr, "four\n"),
        ]);
        let last = |lines| last_lines(all.clone(), lines);
        assert_eq!(last(0), pieces(&[]));
        assert_eq!(last(1), pieces(&[(Stderr, "four\n")]));
        assert_eq!(last(2), pieces(&[(Stdout, "three\n"), (Stderr, "four\n")]));
        let three = [(Stdout, "tw"), (Stdout, "o\nthree\n"), (Stderr, "four\n")];
        assert_eq!(last(3), pieces(&three));
        assert_eq!(last(4), all);
        assert_eq!(last(9), all);
    }

    #[test]
    fn a_line_without_an_end_is_a_line() {
        let all = pieces(&[(Stdout, "one\ntwo")]);
        assert_eq!(last_lines(all.clone(), 1), pieces(&[(Stdout, "two")]));
        assert_eq!(last_lines(all.clone(), 2), all);
    }
}

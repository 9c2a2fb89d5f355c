// Cases of RFC 6455, numbered as in the Autobahn test suite (sections 1 to 7, 9 and 10). Data only:
// `exec-wire-tests` runs them against a server process, `exec-transport` against both ends of its
// own framing.

/// Frames to send, and the expected reply.
#[derive(Clone, Debug)]
pub(crate) struct WebSocketCase {
    /// Number in the Autobahn suite.
    pub(crate) number: String,
    pub(crate) frames: Vec<SentFrame>,
    pub(crate) delivery: Delivery,
    /// A case that does not end in a close is followed by a close with 1000.
    pub(crate) replies: Vec<Reply>,
}

/// How frames are written to the socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Delivery {
    Together,
    FrameByFrame,
    /// In chunks of this many bytes.
    Chopped(usize),
}

/// Expected reply.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Reply {
    /// The message is received unchanged.
    Message(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>),
}

/// Frame to send, possibly an invalid one.
#[derive(Clone, Debug)]
pub(crate) struct SentFrame {
    /// FIN, reserved bits and opcode.
    first: u8,
    payload: Vec<u8>,
    /// Payload bytes that are sent; the header announces all of them.
    sent_len: usize,
}

pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;
const CONTINUATION: u8 = 0;
const FIN: u8 = 0x80;

impl SentFrame {
    pub(crate) fn new(first: u8, payload: impl Into<Vec<u8>>) -> Self {
        let payload = payload.into();
        let sent_len = payload.len();
        Self {
            first,
            payload,
            sent_len,
        }
    }

    /// Encodes the frame for one role.
    pub(crate) fn encode(&self, mask: Option<[u8; 4]>) -> Vec<u8> {
        let masked = if mask.is_some() { 0x80 } else { 0 };
        let mut bytes = vec![self.first];
        match self.payload.len() {
            length @ 0..126 => bytes.push(masked | u8::try_from(length).unwrap()),
            length @ 126..65_536 => {
                bytes.push(masked | 126);
                bytes.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            length => {
                bytes.push(masked | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.extend(mask.iter().flatten());
        let sent_len = &self.payload[..self.sent_len];
        match mask {
            None | Some([0, 0, 0, 0]) => bytes.extend(sent_len),
            Some(mask) => {
                let keys = mask.into_iter().cycle();
                bytes.extend(sent_len.iter().zip(keys).map(|(byte, key)| byte ^ key));
            }
        }
        bytes
    }
}

impl WebSocketCase {
    /// Returns the chunks to write.
    pub(crate) fn writes(&self, mask: Option<[u8; 4]>) -> Vec<Vec<u8>> {
        let frames = self.frames.iter().map(|frame| frame.encode(mask));
        match self.delivery {
            Delivery::Together => vec![frames.flatten().collect()],
            Delivery::FrameByFrame => frames.collect(),
            Delivery::Chopped(size) => {
                let all: Vec<u8> = frames.flatten().collect();
                all.chunks(size).map(<[u8]>::to_vec).collect()
            }
        }
    }
}

/// The sections, with the number of their cases.
pub(crate) const SECTIONS: [(u8, usize); 9] = [
    (1, 16),
    (2, 11),
    (3, 7),
    (4, 10),
    (5, 20),
    (6, 145),
    (7, 37),
    (9, 54),
    (10, 1),
];

/// Returns the cases of a section.
pub(crate) fn cases(section: u8) -> Vec<WebSocketCase> {
    let mut all = Vec::new();
    match section {
        1 => echoes(&mut all),
        2 => pings(&mut all),
        3 => reserved_bits(&mut all),
        4 => reserved_opcodes(&mut all),
        5 => fragments(&mut all),
        6 => utf8(&mut all),
        7 => {
            closes(&mut all);
            close_codes(&mut all);
        }
        9 => large_messages(&mut all),
        _ => automatic_fragments(&mut all),
    }
    all
}

fn add(
    all: &mut Vec<WebSocketCase>,
    number: impl Into<String>,
    frames: Vec<SentFrame>,
    delivery: Delivery,
    replies: Vec<Reply>,
) {
    let number = number.into();
    all.push(WebSocketCase {
        number,
        frames,
        delivery,
        replies,
    });
}

fn text(payload: impl Into<Vec<u8>>) -> SentFrame {
    SentFrame::new(FIN | TEXT, payload)
}

fn ping(payload: impl Into<Vec<u8>>) -> SentFrame {
    SentFrame::new(FIN | PING, payload)
}

fn close(payload: impl Into<Vec<u8>>) -> SentFrame {
    SentFrame::new(FIN | CLOSE, payload)
}

fn start(payload: impl Into<Vec<u8>>) -> SentFrame {
    SentFrame::new(TEXT, payload)
}

fn more(payload: impl Into<Vec<u8>>) -> SentFrame {
    SentFrame::new(CONTINUATION, payload)
}

fn last(payload: impl Into<Vec<u8>>) -> SentFrame {
    SentFrame::new(FIN | CONTINUATION, payload)
}

fn message(payload: impl Into<Vec<u8>>) -> Reply {
    Reply::Message(payload.into())
}

fn pong(payload: impl Into<Vec<u8>>) -> Reply {
    Reply::Pong(payload.into())
}

fn fails(code: u16) -> Reply {
    Reply::Close(Some(code))
}

/// Text with characters of two and three bytes.
const GREEK: &[u8] = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5";

/// Deliveries of cases that come in three.
const THREE: [Delivery; 3] = [
    Delivery::Together,
    Delivery::FrameByFrame,
    Delivery::Chopped(1),
];

fn echoes(all: &mut Vec<WebSocketCase>) {
    for (section, opcode, byte) in [(1, TEXT, b'*'), (2, BINARY, 0xfe)] {
        let sizes = [0, 125, 126, 127, 128, 65_535, 65_536, 65_536];
        for (index, size) in sizes.into_iter().enumerate() {
            let payload = vec![byte; size];
            let delivery = match index {
                7 => Delivery::Chopped(997),
                _ => Delivery::Together,
            };
            add(
                all,
                format!("1.{section}.{}", index + 1),
                vec![SentFrame::new(FIN | opcode, payload.clone())],
                delivery,
                vec![message(payload)],
            );
        }
    }
}

fn pings(all: &mut Vec<WebSocketCase>) {
    let binary = [0x00, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0x00, 0xff];
    let payloads = [&b""[..], b"Hello, world!", &binary, &[0xfe; 125]];
    for (index, payload) in payloads.into_iter().enumerate() {
        let number = format!("2.{}", index + 1);
        let replies = vec![pong(payload)];
        add(
            all,
            number,
            vec![ping(payload)],
            Delivery::Together,
            replies,
        );
    }
    let together = Delivery::Together;
    add(
        all,
        "2.5",
        vec![ping([0xfe; 126])],
        together,
        vec![fails(1002)],
    );
    let replies = vec![pong([0xfe; 125])];
    add(
        all,
        "2.6",
        vec![ping([0xfe; 125])],
        Delivery::Chopped(1),
        replies,
    );
    let unsolicited = SentFrame::new(FIN | PONG, "unsolicited pong payload");
    add(
        all,
        "2.7",
        vec![SentFrame::new(FIN | PONG, "")],
        together,
        vec![],
    );
    add(all, "2.8", vec![unsolicited.clone()], together, vec![]);
    let frames = vec![unsolicited, ping("ping payload")];
    add(all, "2.9", frames, together, vec![pong("ping payload")]);
    for (number, delivery) in [("2.10", together), ("2.11", Delivery::Chopped(1))] {
        let payloads = (0..10).map(|index| format!("payload-{index}"));
        let frames = payloads.clone().map(ping).collect();
        add(all, number, frames, delivery, payloads.map(pong).collect());
    }
}

fn reserved_bits(all: &mut Vec<WebSocketCase>) {
    let hello = "Hello, world!";
    let frame =
        |bits: u8, opcode: u8, payload: &str| SentFrame::new(FIN | bits << 4 | opcode, payload);
    let failed = vec![fails(1002)];
    let together = Delivery::Together;
    add(
        all,
        "3.1",
        vec![frame(1, TEXT, hello)],
        together,
        failed.clone(),
    );
    for (index, delivery) in THREE.into_iter().enumerate() {
        let frames = vec![
            text(hello),
            frame(2 + u8::try_from(index).unwrap(), TEXT, hello),
            ping(""),
        ];
        let replies = vec![message(hello), fails(1002)];
        add(all, format!("3.{}", index + 2), frames, delivery, replies);
    }
    add(
        all,
        "3.5",
        vec![frame(5, BINARY, hello)],
        together,
        failed.clone(),
    );
    add(
        all,
        "3.6",
        vec![frame(6, PING, hello)],
        together,
        failed.clone(),
    );
    add(all, "3.7", vec![frame(7, CLOSE, "")], together, failed);
}

fn reserved_opcodes(all: &mut Vec<WebSocketCase>) {
    for (section, first) in [(1, 3), (2, 11)] {
        for (index, opcode) in (first..first + 5).enumerate() {
            let payload = if index % 2 == 1 {
                "reserved opcode payload"
            } else {
                ""
            };
            let reserved = SentFrame::new(FIN | opcode, payload);
            let (frames, replies) = match index {
                0 | 1 => (vec![reserved], vec![fails(1002)]),
                _ => {
                    let hello = "Hello, world!";
                    let frames = vec![text(hello), reserved, ping("")];
                    (frames, vec![message(hello), fails(1002)])
                }
            };
            let delivery = match index {
                3 => Delivery::FrameByFrame,
                4 => Delivery::Chopped(1),
                _ => Delivery::Together,
            };
            let number = format!("4.{section}.{}", index + 1);
            add(all, number, frames, delivery, replies);
        }
    }
}

fn fragments(all: &mut Vec<WebSocketCase>) {
    let together = Delivery::Together;
    let (one, two) = ("fragment1", "fragment2");
    let whole = message("fragment1fragment2");
    for (number, opcode) in [("5.1", PING), ("5.2", PONG)] {
        let frames = vec![SentFrame::new(opcode, one), last(two)];
        add(all, number, frames, together, vec![fails(1002)]);
    }
    for (index, delivery) in THREE.into_iter().enumerate() {
        let (plain, pinged) = (format!("5.{}", index + 3), format!("5.{}", index + 6));
        add(
            all,
            plain,
            vec![start(one), last(two)],
            delivery,
            vec![whole.clone()],
        );
        let frames = vec![start(one), ping("ping payload"), last(two)];
        add(
            all,
            pinged,
            frames,
            delivery,
            vec![pong("ping payload"), whole.clone()],
        );
        for (offset, stray) in [
            (9, last("non-continuation payload")),
            (12, more("non-continuation payload")),
        ] {
            let frames = vec![stray, text("Hello, world!")];
            let number = format!("5.{}", index + offset);
            add(all, number, frames, delivery, vec![fails(1002)]);
        }
    }
    let frames = vec![start(one), last(two), more("fragment3"), text("fragment4")];
    add(all, "5.15", frames, together, vec![whole, fails(1002)]);
    for (number, stray) in [("5.16", more("fragment1")), ("5.17", last("fragment1"))] {
        let frames = vec![stray, start("fragment2"), last("fragment3")];
        add(all, number, frames, together, vec![fails(1002)]);
    }
    let frames = vec![start(one), SentFrame::new(FIN | TEXT, two)];
    add(all, "5.18", frames, together, vec![fails(1002)]);
    for (number, delivery) in [("5.19", together), ("5.20", Delivery::FrameByFrame)] {
        let frames = vec![
            start("fragment1"),
            more("fragment2"),
            ping("pongme 1!"),
            more("fragment3"),
            more("fragment4"),
            ping("pongme 2!"),
            last("fragment5"),
        ];
        let replies = vec![
            pong("pongme 1!"),
            pong("pongme 2!"),
            message("fragment1fragment2fragment3fragment4fragment5"),
        ];
        add(all, number, frames, delivery, replies);
    }
}

/// Splits a text into frames of one byte each.
fn byte_frames(text: &[u8]) -> Vec<SentFrame> {
    let count = text.len();
    let frames = text.iter().enumerate().map(|(index, byte)| {
        let opcode = if index == 0 { TEXT } else { CONTINUATION };
        let fin = if index + 1 == count { FIN } else { 0 };
        SentFrame::new(fin | opcode, [*byte])
    });
    frames.collect()
}

fn utf8(all: &mut Vec<WebSocketCase>) {
    let (together, failed) = (Delivery::Together, vec![fails(1007)]);
    add(all, "6.1.1", vec![text("")], together, vec![message("")]);
    let frames = vec![start(""), more(""), last("")];
    add(all, "6.1.2", frames, together, vec![message("")]);
    let frames = vec![start(""), more("middle frame payload"), last("")];
    add(
        all,
        "6.1.3",
        frames,
        together,
        vec![message("middle frame payload")],
    );

    let valid = "Hello-µ@ßöäüàá-UTF-8!!".as_bytes();
    let echo = vec![message(valid)];
    add(all, "6.2.1", vec![text(valid)], together, echo.clone());
    let frames = vec![start(&valid[..12]), last(&valid[12..])];
    add(all, "6.2.2", frames, together, echo.clone());
    add(all, "6.2.3", byte_frames(valid), together, echo);
    add(
        all,
        "6.2.4",
        byte_frames(GREEK),
        together,
        vec![message(GREEK)],
    );

    let invalid = [GREEK, b"\xed\xa0\x80edited"].concat();
    add(
        all,
        "6.3.1",
        vec![text(&invalid[..])],
        together,
        failed.clone(),
    );
    add(
        all,
        "6.3.2",
        byte_frames(&invalid),
        together,
        failed.clone(),
    );

    // Nothing follows the offending byte: the server must not wait for more.
    let frames = vec![start(GREEK), more(b"\xf4\x90")];
    add(all, "6.4.1", frames, Delivery::FrameByFrame, failed.clone());
    let frames = vec![start([GREEK, b"\xf4"].concat()), more(b"\x90")];
    add(all, "6.4.2", frames, Delivery::FrameByFrame, failed.clone());
    let whole = [GREEK, b"\xf4\x90\x80\x80edited"].concat();
    for (number, delivery) in [("6.4.3", together), ("6.4.4", Delivery::Chopped(1))] {
        let mut frame = text(&whole[..]);
        frame.sent_len = GREEK.len() + 2;
        add(all, number, vec![frame], delivery, failed.clone());
    }

    for (number, payload, is_valid) in utf8_payloads() {
        let replies = match is_valid {
            true => vec![message(&payload[..])],
            false => failed.clone(),
        };
        add(all, number, vec![text(payload)], together, replies);
    }
}

/// Markus Kuhn's stress test, as the suite has it.
fn utf8_payloads() -> Vec<(String, Vec<u8>, bool)> {
    let mut payloads = Vec::new();
    let mut section = |number: u8, texts: Vec<Vec<u8>>, is_valid: bool| {
        for (index, text) in texts.into_iter().enumerate() {
            payloads.push((format!("6.{number}.{}", index + 1), text, is_valid));
        }
    };
    section(
        5,
        [2, 5, 7, 9, 11].map(|end| GREEK[..end].to_vec()).to_vec(),
        true,
    );
    section(7, hex("00 c280 e0a080 f0908080"), true);
    section(8, hex("f888808080 fc8480808080"), false);
    section(9, hex("7f dfbf efbfbf f48fbfbf"), true);
    section(10, hex("f7bfbfbf fbbfbfbfbf fdbfbfbfbfbf"), false);
    section(
        12,
        hex("80 bf 80bf 80bf80 80bf80bf 80bf80bf80 80bf80bf80bf"),
        false,
    );
    let lonely =
        |range: std::ops::RangeInclusive<u8>| range.flat_map(|byte| [byte, b' ']).collect();
    let starts = [
        0xc0..=0xdf,
        0xe0..=0xef,
        0xf0..=0xf7,
        0xf8..=0xfb,
        0xfc..=0xfd,
    ];
    section(13, starts.map(lonely).to_vec(), false);
    let cut = "c0 e080 f08080 f8808080 fc80808080 df efbf f7bfbf fbbfbfbf fdbfbfbfbf";
    section(14, hex(cut), false);
    section(15, vec![hex(cut).concat()], false);
    section(16, hex("fe ff fefeffff"), false);
    section(
        17,
        hex("c0af e080af f08080af f8808080af fc80808080af"),
        false,
    );
    section(
        18,
        hex("c1bf e09fbf f08fbfbf f887bfbfbf fc83bfbfbfbf"),
        false,
    );
    section(
        19,
        hex("c080 e08080 f0808080 f880808080 fc8080808080"),
        false,
    );
    section(
        20,
        hex("eda080 edadbf edae80 edafbf edb080 edbe80 edbfbf"),
        false,
    );
    let pairs = "eda080edb080 eda080edbfbf edadbfedb080 edadbfedbfbf \
                 edae80edb080 edae80edbfbf edafbfedb080 edafbfedbfbf";
    section(21, hex(pairs), false);
    let planes = (0..=16).flat_map(|plane| [plane << 16 | 0xfffe, plane << 16 | 0xffff]);
    section(22, planes.map(character).collect(), true);
    section(23, (0xfff9..=0xffff).map(character).collect(), true);
    // Prefixes of one text, valid at character boundaries.
    for end in 1..=GREEK.len() {
        let is_valid = str::from_utf8(&GREEK[..end]).is_ok();
        payloads.push((format!("6.6.{end}"), GREEK[..end].to_vec(), is_valid));
    }
    let borders = hex("ed9fbf ee8080 efbfbd f48fbfbf f4908080");
    for (index, text) in borders.into_iter().enumerate() {
        payloads.push((format!("6.11.{}", index + 1), text, index < 4));
    }
    payloads.push(("6.12.8".to_owned(), (0x80..=0xbf).collect(), false));
    payloads
}

fn character(number: u32) -> Vec<u8> {
    char::from_u32(number).unwrap().to_string().into_bytes()
}

fn hex(words: &str) -> Vec<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    let words = words.split_whitespace();
    words
        .map(|word| word.as_bytes().chunks(2).map(byte).collect())
        .collect()
}

fn closes(all: &mut Vec<WebSocketCase>) {
    let together = Delivery::Together;
    let normal = || close(1000_u16.to_be_bytes());
    let hello = "Hello, world!";
    let closed = fails(1000);
    add(
        all,
        "7.1.1",
        vec![text(hello), normal()],
        together,
        vec![message(hello), closed.clone()],
    );
    add(
        all,
        "7.1.2",
        vec![normal(), normal()],
        together,
        vec![closed.clone()],
    );
    add(
        all,
        "7.1.3",
        vec![normal(), ping("")],
        together,
        vec![closed.clone()],
    );
    add(
        all,
        "7.1.4",
        vec![normal(), text(hello)],
        together,
        vec![closed.clone()],
    );
    let frames = vec![start("fragment1"), normal(), last("fragment2")];
    add(all, "7.1.5", frames, together, vec![closed.clone()]);
    let long = vec![b'*'; 256 << 10];
    let frames = vec![text(&long[..]), text(hello), normal(), ping("")];
    add(
        all,
        "7.1.6",
        frames,
        together,
        vec![message(long), message(hello), closed],
    );
    let with = |reason: &[u8]| close([&1000_u16.to_be_bytes()[..], reason].concat());
    add(
        all,
        "7.3.1",
        vec![close("")],
        together,
        vec![Reply::Close(None)],
    );
    add(all, "7.3.2", vec![close("a")], together, vec![fails(1002)]);
    add(all, "7.3.3", vec![with(b"")], together, vec![fails(1000)]);
    add(
        all,
        "7.3.4",
        vec![with(b"Hello World!")],
        together,
        vec![fails(1000)],
    );
    add(
        all,
        "7.3.5",
        vec![with(&[b'*'; 123])],
        together,
        vec![fails(1000)],
    );
    add(
        all,
        "7.3.6",
        vec![with(&[b'*'; 124])],
        together,
        vec![fails(1002)],
    );
    let invalid = [GREEK, b"\xed\xa0\x80edited"].concat();
    add(
        all,
        "7.5.1",
        vec![with(&invalid)],
        together,
        vec![fails(1007)],
    );
}

fn close_codes(all: &mut Vec<WebSocketCase>) {
    let valid: [u16; 13] = [
        1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999,
    ];
    let invalid: [u16; 9] = [0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999];
    let outside: [u16; 2] = [5000, 65_535];
    let mut codes = |section: u8, codes: &[u16], is_valid: bool| {
        for (index, code) in codes.iter().enumerate() {
            let number = format!("7.{section}.{}", index + 1);
            let reply = fails(if is_valid { *code } else { 1002 });
            add(
                all,
                number,
                vec![close(code.to_be_bytes())],
                Delivery::Together,
                vec![reply],
            );
        }
    };
    codes(7, &valid, true);
    codes(9, &invalid, false);
    codes(13, &outside, false);
}

/// Splits a message into frames of `size` bytes.
fn cut(opcode: u8, payload: &[u8], size: usize) -> Vec<SentFrame> {
    let count = payload.len().div_ceil(size);
    let frames = payload.chunks(size).enumerate().map(|(index, part)| {
        let opcode = if index == 0 { opcode } else { CONTINUATION };
        let fin = if index + 1 == count { FIN } else { 0 };
        SentFrame::new(fin | opcode, part)
    });
    frames.collect()
}

/// Messages in fragments (9.3 and 9.4) have 1 MiB instead of 4, to save time.
fn large_messages(all: &mut Vec<WebSocketCase>) {
    for (offset, opcode, byte) in [(0, TEXT, b'*'), (1, BINARY, 0xfe)] {
        let whole = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20, 16 << 20];
        for (index, size) in whole.into_iter().enumerate() {
            let payload = vec![byte; size];
            let frames = vec![SentFrame::new(FIN | opcode, &payload[..])];
            let number = format!("9.{}.{}", 1 + offset, index + 1);
            add(
                all,
                number,
                frames,
                Delivery::Together,
                vec![message(payload)],
            );
        }
        for index in 0..9 {
            let payload = vec![byte; 1 << 20];
            let frames = cut(opcode, &payload, 64 << (2 * index));
            let number = format!("9.{}.{}", 3 + offset, index + 1);
            add(
                all,
                number,
                frames,
                Delivery::Together,
                vec![message(payload)],
            );
        }
        for index in 0..6 {
            let payload = vec![byte; 1 << 20];
            let frames = vec![SentFrame::new(FIN | opcode, &payload[..])];
            let number = format!("9.{}.{}", 5 + offset, index + 1);
            let delivery = Delivery::Chopped(64 << index);
            add(all, number, frames, delivery, vec![message(payload)]);
        }
        for (index, size) in [0, 16, 64, 256, 1024, 4096].into_iter().enumerate() {
            let payload = vec![byte; size];
            let frames = vec![SentFrame::new(FIN | opcode, &payload[..]); 1000];
            let number = format!("9.{}.{}", 7 + offset, index + 1);
            let replies = vec![message(payload); 1000];
            add(all, number, frames, Delivery::Together, replies);
        }
    }
}

fn automatic_fragments(all: &mut Vec<WebSocketCase>) {
    let payload = vec![b'*'; 65_536];
    let frames = cut(TEXT, &payload, 1300);
    add(
        all,
        "10.1.1",
        frames,
        Delivery::Together,
        vec![message(payload)],
    );
}

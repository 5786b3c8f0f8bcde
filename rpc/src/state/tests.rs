use super::hear::MOST_FIELDS;
use super::*;
use crate::frame::{ACK, END_HEADERS, END_STREAM, HEAD, Head, PADDED, PREFACE, WITH_PRIORITY, put};
use crate::hpack::put_field;
use futures::task::noop_waker_ref;

type Said = (u8, u8, u32, Vec<u8>);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put(kind, flags, stream, payload, &mut out);
    out
}

fn fields() -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [(":method", "POST"), (":path", "/a.B/C"), ("content-type", "application/grpc")] {
        put_field(name.as_bytes(), value.as_bytes(), &mut block);
    }
    block
}

fn begins(stream: u32) -> Vec<u8> {
    frame(kind::HEADERS, END_HEADERS, stream, &fields())
}

fn settings(all: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (number, value) in all {
        payload.extend_from_slice(&number.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame(kind::SETTINGS, 0, 0, &payload)
}

fn grows(stream: u32, more: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

/// A connection whose client has said hello.
fn met() -> State {
    let mut state = State::new();
    hear(&mut state, &[&PREFACE[..], &settings(&[])].concat());
    said(&mut state);
    state
}

fn hear(state: &mut State, bytes: &[u8]) -> Heard {
    let mut heard = Heard::default();
    assert_eq!(state.hear(bytes, &mut heard), Ok(bytes.len()));
    heard
}

/// What is on its way to the client.
fn said(state: &mut State) -> Vec<Said> {
    let mut bytes = Vec::new();
    loop {
        state.lay_out();
        if state.out.is_empty() {
            break;
        }
        let before = bytes.len();
        state.out.slices().iter().for_each(|slice| bytes.extend_from_slice(slice));
        state.out.advance(bytes.len() - before);
    }
    let mut rest = &bytes[..];
    let mut frames = Vec::new();
    while let Some((head, behind)) = rest.split_first_chunk::<HEAD>() {
        let head = Head::read(head);
        let (payload, behind) = behind.split_at(head.len);
        frames.push((head.kind, head.flags, head.stream, payload.to_vec()));
        rest = behind;
    }
    frames
}

fn resets(state: &mut State) -> Vec<(u32, u32)> {
    let number = |payload: &[u8]| crate::frame::number(payload).unwrap_or(u32::MAX);
    let frames = said(state).into_iter().filter(|(kind, ..)| *kind == kind::RST_STREAM);
    frames.map(|(_, _, stream, payload)| (stream, number(&payload))).collect()
}

#[test]
fn calls_come_out_however_their_bytes_come_in() {
    let block = fields();
    let (first, second) = block.split_at(10);
    let mut filled = vec![3];
    filled.extend_from_slice(b"cd\0\0\0");
    let with_priority = [&[2, 0, 0, 0, 0, 16][..], &block, &[0; 2]].concat();
    let bytes = [
        &PREFACE[..],
        &settings(&[(99, 1)]),
        &begins(1),
        &frame(kind::DATA, 0, 1, b"ab"),
        // Other streams come between, and what nobody knows.
        &frame(kind::HEADERS, 0, 3, first),
        &frame(kind::CONTINUATION, END_HEADERS, 3, second),
        &frame(200, 0xff, 77, b"?"),
        &frame(kind::DATA, PADDED, 1, &filled),
        &frame(kind::HEADERS, END_HEADERS | END_STREAM | PADDED | WITH_PRIORITY, 5, &with_priority),
        &frame(kind::PRIORITY, 0, 9, &[0; 5]),
        &frame(kind::PING, 0, 0, b"12345678"),
        &frame(kind::DATA, END_STREAM, 1, b""),
    ]
    .concat();
    for step in [1, 2, 7, 30, bytes.len()] {
        let (mut state, mut heard) = (State::new(), Heard::default());
        let (mut held, mut come) = (Vec::new(), &bytes[..]);
        while !come.is_empty() {
            let (now, later) = come.split_at(come.len().min(step));
            come = later;
            held.extend_from_slice(now);
            let taken = state.hear(&held, &mut heard);
            assert!(taken.is_ok(), "{taken:?}");
            held.drain(..taken.unwrap_or(0));
        }
        let begun: Vec<u32> = heard.begun.iter().map(|(stream, _)| *stream).collect();
        assert!(begun == [1, 3, 5] && held.is_empty(), "{step}: {begun:?}");
        assert!(heard.begun.iter().all(|(_, fields)| fields.len() == 3 && fields[1].value == "/a.B/C"));
        assert_eq!(state.whole_request(1).as_deref(), Some(&b"abcd"[..]));
        assert_eq!((state.whole_request(3), state.whole_request(5)), (None, Some(Bytes::new())));
        let pong = (kind::PING, ACK, 0, b"12345678".to_vec());
        assert!(said(&mut state).contains(&pong));
    }
}

#[test]
fn answers_leave_as_the_client_has_room() {
    let mut state = met();
    hear(&mut state, &settings(&[(setting::INITIAL_WINDOW_SIZE, 10)]));
    hear(&mut state, &[begins(1), begins(3)].concat());
    said(&mut state);
    let message = |byte| [Bytes::from(vec![byte; 5]), Bytes::from(vec![byte; 20])];
    let lens = |state: &mut State| {
        let frames = said(state).into_iter().filter(|(kind, ..)| [kind::DATA, kind::HEADERS].contains(kind));
        frames
            .map(|(kind, flags, stream, data)| {
                (stream, if kind == kind::DATA { data.len() } else { 0 }, flags)
            })
            .collect::<Vec<_>>()
    };
    state.answer(1, message(1));
    state.answer(3, message(3));
    let expected = [(1, 0, 4), (3, 0, 4), (1, 5, 0), (3, 5, 0), (1, 5, 0), (3, 5, 0)];
    assert_eq!(lens(&mut state), expected);
    hear(&mut state, &grows(3, 1));
    assert_eq!(lens(&mut state), [(3, 1, 0)]);
    // All streams have less room, and then more again.
    hear(&mut state, &settings(&[(setting::INITIAL_WINDOW_SIZE, 5)]));
    hear(&mut state, &grows(1, 5));
    assert_eq!(lens(&mut state), []);
    hear(&mut state, &settings(&[(setting::INITIAL_WINDOW_SIZE, 100)]));
    let mut left = lens(&mut state);
    left.sort_by_key(|(stream, ..)| *stream);
    assert_eq!(left, [(1, 15, 0), (1, 0, 5), (3, 14, 0), (3, 0, 5)]);
    assert!(state.streams.is_empty());

    // The connection's room counts as well: what was sent is gone from it.
    hear(&mut state, &[settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 20)]), begins(5)].concat());
    said(&mut state);
    state.answer(5, [Bytes::from(vec![5; 100_000]), Bytes::new()]);
    let sent: usize = lens(&mut state).iter().map(|(_, len, _)| len).sum();
    assert_eq!(sent, FIRST_WINDOW as usize - 50);
    hear(&mut state, &grows(0, 1 << 20));
    let sent: usize = lens(&mut state).iter().map(|(_, len, _)| len).sum();
    assert_eq!(sent, 100_050 - FIRST_WINDOW as usize);
}

#[test]
fn what_no_client_may_say_ends_the_connection() {
    let too_many = vec![0; MOST_FIELDS + 1];
    let cases: &[(&str, Vec<u8>, Reason)] = &[
        ("message of no call", frame(kind::DATA, 0, 1, b"x"), Reason::PROTOCOL_ERROR),
        ("message of the connection", frame(kind::DATA, 0, 0, b"x"), Reason::PROTOCOL_ERROR),
        (
            "filled with more than it is",
            [begins(1), frame(kind::DATA, PADDED, 1, &[9, 0])].concat(),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "filled and empty",
            [begins(1), frame(kind::DATA, PADDED, 1, &[])].concat(),
            Reason::FRAME_SIZE_ERROR,
        ),
        ("server's stream", begins(2), Reason::PROTOCOL_ERROR),
        ("fields of the connection", begins(0), Reason::PROTOCOL_ERROR),
        (
            "fields that go on elsewhere",
            [frame(kind::HEADERS, 0, 1, b""), frame(kind::CONTINUATION, 4, 3, b"")].concat(),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "a ping between fields",
            [frame(kind::HEADERS, 0, 1, b""), frame(kind::PING, 0, 0, &[0; 8])].concat(),
            Reason::PROTOCOL_ERROR,
        ),
        ("continuation of nothing", frame(kind::CONTINUATION, 4, 1, b""), Reason::PROTOCOL_ERROR),
        (
            "endless fields",
            [frame(kind::HEADERS, 0, 1, b""), frame(kind::CONTINUATION, 0, 1, b"")].concat(),
            Reason::ENHANCE_YOUR_CALM,
        ),
        ("long fields", frame(kind::HEADERS, END_HEADERS, 1, &too_many), Reason::ENHANCE_YOUR_CALM),
        ("unreadable fields", frame(kind::HEADERS, END_HEADERS, 1, &[0xff, 0xff]), Reason::COMPRESSION_ERROR),
        (
            "fields filled with more",
            frame(kind::HEADERS, END_HEADERS | PADDED, 1, &[200, 0]),
            Reason::PROTOCOL_ERROR,
        ),
        (
            "short priority in fields",
            frame(kind::HEADERS, END_HEADERS | WITH_PRIORITY, 1, &[0; 3]),
            Reason::PROTOCOL_ERROR,
        ),
        ("priority of nothing", frame(kind::PRIORITY, 0, 0, &[0; 5]), Reason::PROTOCOL_ERROR),
        ("end of nothing", frame(kind::RST_STREAM, 0, 0, &[0; 4]), Reason::PROTOCOL_ERROR),
        ("end of what never began", frame(kind::RST_STREAM, 0, 7, &[0; 4]), Reason::PROTOCOL_ERROR),
        ("short end", [begins(1), frame(kind::RST_STREAM, 0, 1, &[0; 3])].concat(), Reason::FRAME_SIZE_ERROR),
        ("settings of a stream", frame(kind::SETTINGS, 0, 1, b""), Reason::PROTOCOL_ERROR),
        ("cut settings", frame(kind::SETTINGS, 0, 0, &[0; 7]), Reason::FRAME_SIZE_ERROR),
        ("acknowledged with words", frame(kind::SETTINGS, ACK, 0, &[0; 6]), Reason::FRAME_SIZE_ERROR),
        ("no such window", settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 31)]), Reason::FLOW_CONTROL_ERROR),
        ("no such frame", settings(&[(setting::MAX_FRAME_SIZE, 100)]), Reason::PROTOCOL_ERROR),
        ("no such push", settings(&[(setting::ENABLE_PUSH, 2)]), Reason::PROTOCOL_ERROR),
        ("a promise", frame(kind::PUSH_PROMISE, 4, 1, &[0; 4]), Reason::PROTOCOL_ERROR),
        ("ping of a stream", frame(kind::PING, 0, 1, &[0; 8]), Reason::PROTOCOL_ERROR),
        ("short ping", frame(kind::PING, 0, 0, &[0; 7]), Reason::FRAME_SIZE_ERROR),
        ("leave of a stream", frame(kind::GOAWAY, 0, 1, &[0; 8]), Reason::PROTOCOL_ERROR),
        ("no growth", grows(0, 0), Reason::PROTOCOL_ERROR),
        ("too much growth", [grows(0, WINDOW), grows(0, WINDOW)].concat(), Reason::FLOW_CONTROL_ERROR),
        ("window of nothing", grows(9, 1), Reason::PROTOCOL_ERROR),
        ("long frame", frame(kind::DATA, 0, 1, &vec![0; FRAME + 1]), Reason::FRAME_SIZE_ERROR),
        ("long ping", frame(kind::PING, 0, 0, &too_many), Reason::FRAME_SIZE_ERROR),
    ];
    for (what, bytes, reason) in cases {
        let mut heard = Heard::default();
        let result = met().hear(bytes, &mut heard);
        assert_eq!(result.map_err(|violation| violation.reason), Err(*reason), "{what}");
    }
    for start in [&b"GET / HTTP/1.1\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r", b"\0"] {
        assert!(State::new().hear(start, &mut Heard::default()).is_err());
    }
}

#[test]
fn what_a_call_may_not_do_ends_the_call() {
    let cases: &[(&str, Vec<u8>, Reason)] = &[
        (
            "more after the end",
            [frame(kind::DATA, END_STREAM, 1, b"x"), frame(kind::DATA, 0, 1, b"y")].concat(),
            Reason::STREAM_CLOSED,
        ),
        ("fields that end nothing", begins(1), Reason::PROTOCOL_ERROR),
        ("no growth", grows(1, 0), Reason::PROTOCOL_ERROR),
        ("too much growth", grows(1, WINDOW), Reason::FLOW_CONTROL_ERROR),
        ("short priority", frame(kind::PRIORITY, 0, 1, &[0; 3]), Reason::FRAME_SIZE_ERROR),
    ];
    for (what, bytes, reason) in cases {
        let mut state = met();
        hear(&mut state, &[begins(1), begins(3)].concat());
        hear(&mut state, bytes);
        assert_eq!(resets(&mut state), [(1, reason.0)], "{what}");
        assert_eq!(state.next_part(1, true, noop_waker_ref()), Some(Part::Gone), "{what}");
        // The other call goes on.
        hear(&mut state, &frame(kind::DATA, END_STREAM, 3, b"z"));
        assert_eq!(state.whole_request(3).as_deref(), Some(&b"z"[..]), "{what}");
    }
}

#[test]
fn a_request_is_read_in_parts_or_whole() {
    let mut state = met();
    let waker = noop_waker_ref();
    hear(&mut state, &[begins(1), frame(kind::DATA, 0, 1, b"ab")].concat());
    assert_eq!(state.whole_request(1), None);
    assert_eq!(state.next_part(1, false, waker), Some(Part::Bytes(Bytes::from_static(b"ab"))));
    assert_eq!(state.next_part(1, false, waker), None);
    hear(&mut state, &frame(kind::DATA, 0, 1, b"cd"));
    assert!(state.woken.pop().is_some() && state.next_part(1, true, waker).is_none());
    hear(&mut state, &frame(kind::DATA, 0, 1, b"ef"));
    assert!(state.woken.is_empty());
    // Fields behind the messages end it as well.
    hear(&mut state, &frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &fields()));
    assert!(state.woken.pop().is_some());
    assert_eq!(state.next_part(1, true, waker), Some(Part::Bytes(Bytes::from_static(b"cdef"))));
    assert_eq!(state.next_part(1, true, waker), Some(Part::End));
}

#[test]
fn room_for_requests_grows_back() {
    let mut state = met();
    hear(&mut state, &begins(1));
    let part = frame(kind::DATA, 0, 1, &vec![7; FRAME]);
    let mut grown = 0;
    for _ in 0..WINDOW as usize / FRAME + 10 {
        hear(&mut state, &part);
        assert!(
            matches!(state.next_part(1, false, noop_waker_ref()), Some(Part::Bytes(b)) if b.len() == FRAME)
        );
        grown += said(&mut state).iter().filter(|(kind, ..)| *kind == kind::WINDOW_UPDATE).count();
    }
    // When half of it is used up, for the connection and for the stream.
    assert_eq!(grown, 2 * 2);
}

#[test]
fn more_than_there_is_room_for_is_not_taken() {
    let mut state = met();
    hear(&mut state, &begins(1));
    state.window = 10;
    let result = state.hear(&frame(kind::DATA, 0, 1, &[0; 11]), &mut Heard::default());
    assert_eq!(result.map_err(|violation| violation.reason), Err(Reason::FLOW_CONTROL_ERROR));
}

#[test]
fn a_call_that_is_given_up_is_forgotten() {
    let mut state = met();
    hear(&mut state, &begins(1));
    state.answer(1, [Bytes::from(vec![0; 100_000]), Bytes::new()]);
    hear(&mut state, &frame(kind::RST_STREAM, 0, 1, &8u32.to_be_bytes()));
    assert!(state.streams.is_empty());
    state.answer(1, [Bytes::new(), Bytes::new()]);
    assert!(!state.begin_answer(1, &[], true) && state.may_go_on(1, noop_waker_ref()).is_none());
    // What crossed it is nothing to complain of.
    hear(&mut state, &[frame(kind::DATA, END_STREAM, 1, b"x"), grows(1, 5)].concat());
    assert!(said(&mut state).iter().all(|(kind, ..)| ![kind::DATA, kind::RST_STREAM].contains(kind)));
}

#[test]
fn who_leaves_finishes_what_has_begun() {
    let mut state = met();
    hear(&mut state, &begins(1));
    state.leave(Reason::NO_ERROR, "");
    assert!(hear(&mut state, &begins(3)).begun.is_empty());
    let frames = said(&mut state);
    assert!(frames.contains(&(kind::GOAWAY, 0, 0, [1u32, 0].map(u32::to_be_bytes).concat())));
    assert!(frames.contains(&(kind::RST_STREAM, 0, 3, Reason::REFUSED_STREAM.0.to_be_bytes().to_vec())));
    assert!(!state.is_over());
    state.answer(1, [Bytes::new(), Bytes::new()]);
    // The client has not ended its request: nobody waits for the rest of it.
    assert_eq!(resets(&mut state), [(1, 0)]);
    assert!(state.is_over());
}

#[test]
fn rubbish_is_survived() {
    let good = [
        &PREFACE[..],
        &settings(&[(setting::INITIAL_WINDOW_SIZE, 1000), (setting::MAX_FRAME_SIZE, 20_000)]),
        &begins(1),
        &frame(kind::DATA, END_STREAM, 1, &[1; 50]),
        &frame(kind::HEADERS, 0, 3, &fields()[..20]),
        &frame(kind::CONTINUATION, END_HEADERS, 3, &fields()[20..]),
        &frame(kind::DATA, PADDED, 3, &[5; 40]),
        &grows(0, 70),
        &frame(kind::RST_STREAM, 0, 1, &[0; 4]),
        &frame(kind::PING, 0, 0, &[0; 8]),
    ]
    .concat();
    let mut seed = 1u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let (mut ended, mut went_on) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=random(3) {
            // Behind the preface, which would end most of them.
            let at = PREFACE.len() + random(bytes.len() - PREFACE.len());
            bytes[at] = random(256) as u8;
        }
        let (mut state, mut heard) = (State::new(), Heard::default());
        match state.hear(&bytes, &mut heard) {
            Ok(taken) => {
                assert!(taken <= bytes.len());
                went_on += 1;
            }
            Err(violation) => {
                state.leave(violation.reason, violation.what);
                ended += 1;
            }
        }
        for (stream, _) in heard.begun {
            state.answer(stream, [Bytes::from(vec![1; 30]), Bytes::from(vec![2; 3000])]);
        }
        said(&mut state);
        state.end();
    }
    assert!(ended > 1000 && went_on > 1000, "{ended} {went_on}");
}

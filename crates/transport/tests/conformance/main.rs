//! Every transport keeps the promises of the crate's documentation (T1 to T7).
//!
//! [`suite`] is one set of tests over a [`Factory`](pair::Factory); each transport is a factory.

#[cfg(feature = "tls")]
#[path = "../support/certificates.rs"]
mod certificates;
mod factories;
mod pair;
mod suite;

/// The whole suite for one factory.
macro_rules! suite {
    ($name:ident, $factory:expr, [$($test:ident),+ $(,)?]) => {
        mod $name {
            $(
                #[test]
                fn $test() {
                    super::suite::$test(&$factory);
                }
            )+
        }
    };
}

macro_rules! conforms {
    ($name:ident: $factory:expr) => {
        suite!(
            $name,
            $factory,
            [
                bytes_arrive_in_order_each_once_both_ways_on_all_streams,
                more_ranges_than_one_call_takes,
                nothing_is_moved_without_an_error,
                a_sender_without_room_is_blocked_and_told_of_room,
                a_stuck_stream_does_not_hold_up_the_other,
                a_reader_of_single_bytes_gets_them_all,
                an_end_comes_behind_all_bytes_and_each_way_alone,
                a_peer_that_goes_away_is_noticed_and_what_came_is_a_prefix,
                a_descriptor_is_readable_as_long_as_there_is_something,
                streams_are_few_and_numbered_alike_on_both_sides,
                what_comes_before_a_stream_is_opened_waits_for_it,
                datagrams_come_whole_or_not_at_all,
                a_cut_at_any_byte_leaves_a_prefix_and_ends_both_sides,
            ]
        );
    };
}

conforms!(memory: crate::factories::Memories::default());
conforms!(memory_with_little_room: crate::factories::Memories::tiny());
conforms!(tcp: crate::factories::Sockets::v4());
conforms!(tcp_over_ipv6: crate::factories::Sockets::v6());
conforms!(shaped_memory: crate::factories::Virtual::default());
#[cfg(feature = "tls")]
conforms!(tls: crate::factories::Secured::new("127.0.0.1:0"));
#[cfg(feature = "tls")]
conforms!(tls_over_ipv6: crate::factories::Secured::new("[::1]:0"));
#[cfg(feature = "tls")]
conforms!(shaped_tls: crate::factories::Secured::shaped("127.0.0.1:0"));

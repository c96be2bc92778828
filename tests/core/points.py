"""The protocol's points, and for each the tests that were seen to fail without it.

The numbers are those of the rules and repairs in ``docs/decisions``; those that went into others
have no test of their own. Every test here failed when its point was taken out of the code by
hand, one sabotage at a time; more tests carry a point's number than are listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

POINTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        # -- the supervisor --
        "S1": ("test_S1_a_question_about_somebody_unknown_is_answered_that_it_is_unrecorded",),
        "S2": (
            "test_S2_who_wants_to_stay_and_is_unrecorded_keeps_references_and_subscribes",
            "test_S2_one_that_left_and_is_still_counted_on_says_so_to_the_supervisor",
            "test_S2_who_wants_to_leave_and_is_let_go_drops_everything",
            "test_S2_who_wants_to_leave_answers_a_configuration_by_saying_so",
            "test_S2_who_wants_to_leave_says_so_at_every_timeout",
        ),
        "S3": ("test_S3_a_request_is_answered_from_the_repaired_database",),
        "S4": ("test_S4_of_several_copies_of_a_node_the_lowest_index_stays",),
        "S5": ("test_S5_a_label_that_l_never_produces_counts_as_infinity_and_is_moved_first",),
        "S6": (
            "test_S6_any_cursor_is_taken_modulo_n",
            "test_S6_an_empty_roster_has_nobody_to_tell",
        ),
        "S7": (
            "test_S7_after_a_change_nobody_is_its_own_neighbour_or_the_leavers",
            "test_S7_the_last_member_moves_into_the_gap_and_is_told_its_new_place",
        ),
        "S8": (
            "test_S8_a_configuration_is_ones_label_and_the_two_labels_beside_it",
            "test_S8_a_configuration_brings_the_label",
        ),
        "S9": (
            "test_S9_those_whose_configuration_the_repair_changes_must_hear_of_it",
            "test_S9_the_audit_finds_a_list_that_contradicts_itself_when_it_comes_to_the_slot",
        ),
        "S10": (
            "test_S10_requests_that_name_nobody_the_supervisor_or_a_suspect_are_ignored",
            "test_S10_a_message_from_the_suspect_itself_clears_the_suspicion",
            "test_S10_a_message_that_does_not_say_whose_it_is_is_dropped",
            "test_S10_a_suspect_that_waits_for_an_answer_gets_none",
            "test_S10_a_suspicion_is_forgotten_after_64_timeouts",
        ),
        "S11": (
            "test_S11_a_newcomer_and_those_beside_it_are_told",
            "test_S11_two_rounds_after_a_join_the_ring_is_right",
        ),
        # -- the list and the ring --
        "B2": (
            "test_B2_void_neighbours_are_dropped_at_a_timeout",
            "test_B2_a_configuration_cannot_bring_void_references",
            "test_B2_a_slot_held_by_ourselves_or_the_supervisor_is_emptied",
        ),
        "B3": (
            "test_B3_a_reference_without_a_label_cannot_be_made",
            "test_B3_no_left_neighbour_is_minus_infinity_and_no_right_one_plus_infinity",
        ),
        "B4": (
            "test_B4_a_wrap_edge_that_has_moved_on_its_side_stays_the_wrap_edge",
            "test_B4_a_wrap_edge_that_has_moved_to_our_other_side_goes_to_the_line_only",
        ),
        "B5": (
            "test_B5_a_nearer_candidate_that_speaks_for_itself_is_put_on_the_line_at_once",
            "test_B5_the_wrap_edge_introduced_once_more_changes_nothing",
        ),
        "B6": ("test_B6_a_wrap_edge_with_nobody_on_its_side_is_linearized_as_well",),
        "B7": (
            "test_B7_so_is_an_introduction",
            "test_B7_without_a_label_a_check_is_answered_by_asking_to_be_forgotten",
        ),
        "B8": ("test_B8_without_a_label_one_subscribes_and_does_nothing_else",),
        "B9": ("test_B9_a_node_is_forgotten_as_neighbour_and_as_shortcut",),
        "B11": ("test_B11_an_old_neighbour_beyond_both_new_ones_is_passed_on_instead",),
        "B12": (
            "test_B12_an_old_neighbour_at_the_same_distance_is_shown_to_the_supervisor",
            "test_B12_one_that_the_configuration_names_is_not_whatever_its_label_was",
        ),
        "B13": (
            "test_B13_at_the_left_end_pred_becomes_the_wrap_edge",
            "test_B13_references_to_the_dead_do_not_stay",
        ),
        "B14": (
            "test_B14_a_left_neighbour_counts_only_after_it_has_been_put_right",
            "test_B14_wrap_edge_and_shortcuts_are_not_consulted",
        ),
        # -- shortcuts --
        "C2": (
            "test_C2_a_chain_runs_over_the_wrap_from_1_to_0",
            "test_C2_chains_are_bounded_and_lead_outwards",
        ),
        "C3": ("test_C3_a_ring_neighbour_and_a_shortcut_are_introduced_in_the_mixed_case",),
        "C4": ("test_C4_nobody_is_introduced_to_itself_to_us_or_to_somebody_unknown",),
        "C5": ("test_C5_what_is_dropped_is_probed",),
        # -- rules --
        "R1": (
            "test_R1_a_new_holder_takes_the_slot_and_the_old_one_is_probed",
            "test_R1_a_shortcut_for_which_there_is_no_slot_is_probed",
            "test_R1_a_displaced_shortcut_is_asked_who_it_is",
            "test_R1_stale_shortcuts_are_healed_without_help_of_the_line",
            "test_R1_alone_ends_the_livelock_of_the_papers_pseudocode",
        ),
        "R2": (
            "test_R2_the_word_of_others_changes_no_edge",
            "test_R2_neighbours_do_not_change_by_the_word_of_others",
            "test_R2_wrong_beliefs_about_neighbours_do_not_spread",
        ),
        "R8": (
            "test_R8_a_peer_with_our_own_label_is_a_case_for_the_supervisor",
            "test_R8_somebody_else_with_our_label_is_not_stored_but_asked_about",
        ),
        "R9": (
            "test_R9_a_configuration_that_still_names_the_neighbour_doubles_the_wait",
            "test_R9_an_unanswered_question_is_asked_again_soon_however_long_the_back_off",
            "test_R9_a_configuration_that_nobody_asked_for_confirms_nothing",
            "test_R9_ticks_that_cannot_be_count_as_none",
            "test_R9_nobody_asks_while_both_neighbours_are_heard",
            "test_R9_the_word_of_others_about_a_neighbour_does_not_count",
            "test_R9_who_knows_nobody_but_a_dead_neighbour_is_found",
        ),
        "R10": (
            "test_R10_a_neighbour_that_has_moved_away_makes_us_ask_about_both_of_us",
            "test_R10_a_displaced_node_is_handed_over_once",
            "test_R10_an_unsubscribe_costs_few_introductions",
        ),
        "R11": (
            "test_R11_one_that_learns_it_is_unrecorded_wakes_all_it_knows_and_then_subscribes",
            "test_R11_one_without_a_label_wakes_nobody",
            "test_R11_a_lost_database_is_noticed_by_all_in_few_rounds",
        ),
        "R12": (
            "test_R12_a_stored_label_under_another_id_makes_us_ask_about_both_and_change_nothing",
            "test_R12_adjacent_members_that_were_replaced_find_their_places",
        ),
        "R13": (
            "test_R13_a_wrap_edge_of_one_in_the_middle_is_not_passed_on",
            "test_R13_messages_that_arrive_twice_do_not_multiply",
        ),
        "R14": (
            "test_R14_nobody_is_accused_before_the_sum_has_settled_after_a_change",
            "test_R14_a_node_that_is_two_children_is_counted_once",
            "test_R14_an_equal_digest_in_between_starts_the_count_again",
            "test_R14_the_weight_tells_pairs_of_label_and_node_apart",
            "test_R14_the_digest_follows_every_change_of_the_roster",
            "test_R14_label_0_puts_the_digest_into_its_question_and_nobody_else_does",
            "test_R14_the_digest_of_anybody_but_label_0_is_not_believed",
            "test_R14_two_swapped_members_are_found_before_round_robin_comes_to_them",
        ),
        "R15": (
            "test_R15_neither_members_nor_strangers_wait_for_the_other",
            "test_R15_they_come_last_for_eight_timeouts",
            "test_R15_members_have_a_budget_of_64_or_an_eighth_of_all_who_are_known",
            "test_R15_a_lost_database_does_not_make_the_supervisor_shout",
        ),
        # -- repair over shortcuts, rumours --
        "R16": (
            "test_R16_repair_over_shortcuts_takes_few_rounds",
            "test_R16_tries_are_compared_over_shortcuts_too",
        ),
        "R17": ("test_R17_rumours_of_repairs_are_faster_than_repairs",),
        "k+1": (
            "test_k_plus_1_is_the_exponent_of_the_machine_and_k_without_the_rule",
            "test_k_plus_1_is_the_exponent_with_which_a_label_of_length_k_asks",
            "test_k_plus_1_keeps_the_supervisor_below_one_request_a_round",
        ),
        # -- publications --
        "T1": (
            "test_T1_a_difference_far_below_shows_at_the_root_although_all_labels_above_are_equal",
            "test_T1_a_question_tells_the_hash_over_the_hashes_of_both_children",
            "test_T1_an_id_that_looks_like_the_hashes_of_two_others_does_not_pass_for_them",
        ),
        "T2": (
            "test_T2_one_with_an_empty_trie_asks_like_all_others_and_gets_everything",
            "test_T2_the_virtual_root_of_another_mode_is_silent_as_well",
            "test_T2_two_empty_tries_are_silent",
        ),
        "T3": (
            "test_T3_all_that_is_missing_beside_a_deeper_node_comes_and_not_its_first_sibling_only",
            "test_T3_all_that_is_missing_beside_a_deeper_node_comes_at_once",
            "test_T3_what_the_asker_has_below_is_not_sent_again",
        ),
        "T4": (
            "test_T4_all_240_pairs_of_sets_over_two_bits_are_equal_after_one_session",
            "test_T4_alone_makes_every_pair_equal_and_T3_helps_some_without_it",
            "test_T4_an_empty_claim_says_that_everything_there_is_lacking",
            "test_T4_one_session_makes_both_equal_whoever_asks",
            "test_T4_whoever_reads_a_claim_sends_what_is_lacking_under_its_cover",
            "test_T4_without_it_lists_can_hide_a_difference_for_ever",
        ),
        "T6": (
            "test_T6_leaves_are_told_without_hashes",
            "test_T6_nobody_sends_an_empty_publish",
            "test_T6_nothing_is_sent_of_nothing",
        ),
        "T8": (
            "test_T8_a_session_is_over_once_what_was_asked_for_has_come",
            "test_T8_an_open_session_is_over_after_so_many_silent_ticks",
            "test_T8_publications_that_come_with_a_question_do_not_end_the_session",
            "test_T8_the_sessions_of_others_keep_nobody_from_asking",
            "test_T8_who_waits_for_what_it_asked_for_asks_nobody_else",
            "test_T8_whoever_waits_for_an_answer_does_not_begin_another_session",
        ),
        "T9": (
            "test_T9_a_forged_root_is_followed_by_no_more_than_the_tries_have_nodes",
            "test_T9_a_message_with_such_a_label_is_not_read",
            "test_T9_a_reply_strictly_extends_a_label_it_answers_to",
            "test_T9_labels_of_more_bits_than_an_id_are_refused",
            "test_T9_two_that_differ_about_the_hash_of_one_leaf_do_not_argue",
        ),
        "T10": (
            "test_T10_a_stale_hash_is_worked_out_again_and_no_longer_hides_a_difference",
            "test_T10_a_wrong_hash_is_found_and_put_right",
            "test_T10_the_scrub_comes_to_every_hash_of_a_large_trie_slice_by_slice",
        ),
        "T11": (
            "test_T11_a_wrong_id_cannot_keep_out_the_publication_whose_it_is",
            "test_T11_what_comes_under_a_wrong_id_is_kept_under_the_one_its_fields_give",
        ),
        "T12": (
            "test_T12_a_damaged_row_is_never_sent",
            "test_T12_a_row_that_is_not_what_was_stored_is_put_aside_and_fetched_again",
        ),
        "T14": (
            "test_T14_a_message_far_longer_than_anybody_sends_is_not_answered",
            "test_T14_a_newcomer_gets_all_3000_in_the_end",
            "test_T14_a_partner_has_a_credit_a_tick_and_others_have_their_own",
            "test_T14_a_publication_larger_than_a_chunk_travels_alone",
            "test_T14_an_answer_comes_in_chunks_and_not_in_more_than_a_message_may_bring",
            "test_T14_the_rest_is_fetched_within_one_session_if_the_credit_lasts",
            "test_T14_what_is_said_about_a_large_difference_is_said_in_several_messages",
            "test_T14_without_any_credit_there_is_no_answer_to_argue_about",
        ),
        "T16": (
            "test_T16_a_neighbour_on_both_sides_is_asked_to_confirm_once",
            "test_T16_neither_ourselves_nor_the_supervisor_is_a_partner",
            "test_T16_one_alone_in_its_ring_asks_nobody",
            "test_T16_one_that_is_neighbour_and_shortcut_is_no_more_likely_than_another",
            "test_T16_one_without_partners_does_nothing",
        ),
        "T18": (
            "test_T18_any_difference_makes_one_ask_again_soon",
            "test_T18_by_default_one_asks_at_every_tick",
            "test_T18_the_period_doubles_up_to_64_ticks_while_all_is_silent",
            "test_T18_what_is_equal_or_known_makes_nobody_ask_sooner",
        ),
        "T19": (
            "test_T19_a_claim_that_is_true_and_not_about_everything_confirms_nothing",
            "test_T19_a_confirmation_counts_only_while_the_root_is_still_ours",
            "test_T19_an_ordinary_question_is_not_answered_by_equal_tries",
            "test_T19_different_tries_are_not_confirmed",
            "test_T19_equal_tries_are_confirmed",
        ),
        "batch": (
            "test_batch_a_hundred_differences_take_few_messages",
            "test_batch_a_session_over_4096_ids_needs_few_messages",
            "test_batch_all_that_is_open_goes_into_one_message",
            "test_batch_an_answer_goes_several_levels_down",
            "test_batch_few_ids_are_listed_at_once",
        ),
    }
)

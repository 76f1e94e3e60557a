package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	instance = "front"
	large    = 2_000_000 // a value that comes in several chunks
)

// front writes with the clients of cloud.google.com/go/bigtable, and reads change streams with its generated stubs:
// there is no client of change streams in Go.
type front struct {
	admin *bigtable.AdminClient
	data  *bigtable.Client
	stubs bigtablepb.BigtableClient
}

func connectFront(ctx context.Context) (*front, error) {
	channel, err := grpc.NewClient(os.Getenv("BIGTABLE"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(256<<20)))
	if err != nil {
		return nil, err
	}
	admin, err := bigtable.NewAdminClient(ctx, project, instance, option.WithGRPCConn(channel))
	if err != nil {
		return nil, err
	}
	noMetrics := bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}
	data, err := bigtable.NewClientWithConfig(ctx, project, instance, noMetrics, option.WithGRPCConn(channel))
	return &front{admin, data, bigtablepb.NewBigtableClient(channel)}, err
}

// partitions lists those of a table that was made with two splits.
func (f *front) partitions(ctx context.Context) (any, error) {
	table, err := f.create(ctx, "partitions", true, "h", "p")
	if err != nil {
		return nil, err
	}
	answers, err := f.stubs.GenerateInitialChangeStreamPartitions(ctx,
		&bigtablepb.GenerateInitialChangeStreamPartitionsRequest{TableName: f.path(table)})
	if err != nil {
		return nil, err
	}
	ranges := [][]string{}
	for {
		answer, err := answers.Recv()
		if err == io.EOF {
			return ranges, nil
		}
		if err != nil {
			return nil, err
		}
		keys := answer.GetPartition().GetRowRange()
		ranges = append(ranges, []string{string(keys.GetStartKeyClosed()), string(keys.GetEndKeyOpen())})
	}
}

// mutations makes a change of every kind and reads all of them, up to an end time.
func (f *front) mutations(ctx context.Context) (any, error) {
	table, err := f.create(ctx, "mutations", true)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	for _, change := range []struct {
		key  string
		make func(*bigtable.Mutation)
	}{
		{"a", func(m *bigtable.Mutation) { m.Set("f", "one", 1000, []byte("1")); m.Set("g", "two", 1000, []byte("2")) }},
		{"a", func(m *bigtable.Mutation) { m.DeleteCellsInColumn("f", "one") }},
		{"a", func(m *bigtable.Mutation) { m.DeleteCellsInFamily("g") }},
		{"b", func(m *bigtable.Mutation) { m.Set("f", "large", 1000, []byte(strings.Repeat("x", large))) }},
		{"b", func(m *bigtable.Mutation) { m.DeleteRow() }},
	} {
		mutation := bigtable.NewMutation()
		change.make(mutation)
		if err := f.data.Open(table).Apply(ctx, change.key, mutation); err != nil {
			return nil, err
		}
	}
	changes := [][]any{}
	closed, err := f.read(ctx, table, start, "", func(key string, kinds []string, _ string) {
		changes = append(changes, []any{key, kinds})
	})
	return map[string]any{"changes": changes, "end": closed}, err
}

// resume reads three changes, and again those after the first with its token.
func (f *front) resume(ctx context.Context) (any, error) {
	table, err := f.create(ctx, "resume", true)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	for _, key := range []string{"a", "b", "c"} {
		mutation := bigtable.NewMutation()
		mutation.Set("f", "q", 1000, []byte(key))
		if err := f.data.Open(table).Apply(ctx, key, mutation); err != nil {
			return nil, err
		}
	}
	tokens, keys := []string{}, []string{}
	note := func(key string, _ []string, token string) {
		tokens, keys = append(tokens, token), append(keys, key)
	}
	if _, err := f.read(ctx, table, start, "", note); err != nil || len(tokens) == 0 {
		return nil, fmt.Errorf("no first change: %w", err)
	}
	keys = []string{}
	_, err = f.read(ctx, table, start, tokens[0], note)
	return keys, err
}

// refusals asks for a table without a change stream, with a token that is none, and from before the stream.
func (f *front) refusals(ctx context.Context) (any, error) {
	without, err := f.create(ctx, "without", false)
	if err != nil {
		return nil, err
	}
	table, err := f.create(ctx, "refusals", true)
	if err != nil {
		return nil, err
	}
	none := func(string, []string, string) {}
	_, noStream := f.read(ctx, without, time.Now(), "", none)
	_, noToken := f.read(ctx, table, time.Now(), "none", none)
	_, tooEarly := f.read(ctx, table, time.Now().Add(-time.Hour), "", none)
	return map[string]any{"without": name(noStream), "token": name(noToken), "start": name(tooEarly)}, nil
}

// read hands over the changes of a table from a start, or a token, until now; it returns how the stream was closed.
func (f *front) read(
	ctx context.Context, table string, start time.Time, token string,
	take func(key string, kinds []string, token string),
) (string, error) {
	all := &bigtablepb.StreamPartition{RowRange: &bigtablepb.RowRange{
		StartKey: &bigtablepb.RowRange_StartKeyClosed{}, EndKey: &bigtablepb.RowRange_EndKeyOpen{},
	}}
	request := &bigtablepb.ReadChangeStreamRequest{TableName: f.path(table), Partition: all, EndTime: timestamppb.Now()}
	if token == "" {
		request.StartFrom = &bigtablepb.ReadChangeStreamRequest_StartTime{StartTime: timestamppb.New(start)}
	} else {
		tokens := []*bigtablepb.StreamContinuationToken{{Partition: all, Token: token}}
		request.StartFrom = &bigtablepb.ReadChangeStreamRequest_ContinuationTokens{
			ContinuationTokens: &bigtablepb.StreamContinuationTokens{Tokens: tokens},
		}
	}
	stream, err := f.stubs.ReadChangeStream(ctx, request)
	if err != nil {
		return "", err
	}
	key, kinds, size := "", []string{}, 0
	for {
		message, err := stream.Recv()
		if err != nil {
			return "", err
		}
		if closed := message.GetCloseStream(); closed != nil {
			return name(status.ErrorProto(closed.GetStatus())), nil
		}
		change := message.GetDataChange()
		if change == nil {
			continue // a heartbeat
		}
		if change.GetType() != bigtablepb.ReadChangeStreamResponse_DataChange_CONTINUATION {
			key = string(change.GetRowKey()) // the first message of a change alone has it
		}
		for _, chunk := range change.GetChunks() {
			switch mutation := chunk.GetMutation().GetMutation().(type) {
			case *bigtablepb.Mutation_SetCell_:
				size += len(mutation.SetCell.GetValue())
				if info := chunk.GetChunkInfo(); info == nil || info.GetLastChunk() {
					kinds, size = append(kinds, fmt.Sprintf("SetCell of %d", size)), 0
				}
			case *bigtablepb.Mutation_DeleteFromColumn_:
				kinds = append(kinds, "DeleteCells")
			case *bigtablepb.Mutation_DeleteFromFamily_:
				kinds = append(kinds, "DeleteFamily")
			default:
				return "", fmt.Errorf("a mutation of another kind: %v", chunk)
			}
		}
		if change.GetDone() {
			take(key, kinds, change.GetToken())
			kinds = []string{}
		}
	}
}

func (f *front) create(ctx context.Context, prefix string, streamed bool, splits ...string) (string, error) {
	table := fmt.Sprintf("go-%s-%d", prefix, time.Now().UnixNano())
	conf := &bigtable.TableConf{TableID: table, SplitKeys: splits, Families: map[string]bigtable.GCPolicy{
		"f": bigtable.NoGcPolicy(), "g": bigtable.NoGcPolicy(),
	}}
	if streamed {
		conf.ChangeStreamRetention = 24 * time.Hour
	}
	return table, f.admin.CreateTableFromConf(ctx, conf)
}

func (f *front) path(table string) string {
	return fmt.Sprintf("projects/%s/instances/%s/tables/%s", project, instance, table)
}

// name returns gRPC's name of an error's code, as it is written everywhere but in Go.
func name(err error) string {
	switch code := status.Code(err); code {
	case codes.FailedPrecondition:
		return "FAILED_PRECONDITION"
	case codes.InvalidArgument:
		return "INVALID_ARGUMENT"
	default:
		return code.String()
	}
}

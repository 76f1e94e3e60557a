package clients;

import com.google.api.gax.paging.Page;
import com.google.cloud.NoCredentials;
import com.google.cloud.bigquery.BigQuery;
import com.google.cloud.bigquery.BigQueryException;
import com.google.cloud.bigquery.BigQueryOptions;
import com.google.cloud.bigquery.Dataset;
import com.google.cloud.bigquery.DatasetId;
import com.google.cloud.bigquery.DatasetInfo;
import com.google.cloud.bigquery.Field;
import com.google.cloud.bigquery.FieldValue;
import com.google.cloud.bigquery.FieldValueList;
import com.google.cloud.bigquery.Job;
import com.google.cloud.bigquery.JobInfo;
import com.google.cloud.bigquery.PrimaryKey;
import com.google.cloud.bigquery.QueryJobConfiguration;
import com.google.cloud.bigquery.QueryParameterValue;
import com.google.cloud.bigquery.Schema;
import com.google.cloud.bigquery.StandardSQLTypeName;
import com.google.cloud.bigquery.StandardTableDefinition;
import com.google.cloud.bigquery.Table;
import com.google.cloud.bigquery.TableConstraints;
import com.google.cloud.bigquery.TableId;
import com.google.cloud.bigquery.TableInfo;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

/** Definitions, queries and jobs with google-cloud-bigquery, which packs every body with gzip. */
final class Rest {
    static final String PROJECT = "millrace-test";
    final String dataset;
    private final BigQuery client;

    Rest(String address, String dataset) {
        this.dataset = dataset;
        client = BigQueryOptions.newBuilder().setProjectId(PROJECT).setHost("http://" + address)
            .setCredentials(NoCredentials.getInstance()).build().getService();
        client.create(DatasetInfo.newBuilder(dataset).setDescription("as created").build());
    }

    Map<String, Callable<Object>> sessions() {
        Map<String, Callable<Object>> sessions = new LinkedHashMap<>();
        sessions.put("dataset_update", this::datasetUpdate);
        sessions.put("definitions", this::definitions);
        sessions.put("missing_table", this::missingTable);
        sessions.put("query", this::query);
        sessions.put("pages", this::pages);
        sessions.put("job", this::job);
        return sessions;
    }

    /** Makes a table k INT64 NOT NULL, v STRING; k is its primary key where keyed. */
    Table table(String name, boolean keyed) {
        Schema schema = Schema.of(
            Field.newBuilder("k", StandardSQLTypeName.INT64).setMode(Field.Mode.REQUIRED).build(),
            Field.of("v", StandardSQLTypeName.STRING));
        StandardTableDefinition.Builder definition = StandardTableDefinition.newBuilder().setSchema(schema);
        if (keyed) {
            PrimaryKey key = PrimaryKey.newBuilder().setColumns(List.of("k")).build();
            definition.setTableConstraints(TableConstraints.newBuilder().setPrimaryKey(key).build());
        }
        return client.create(TableInfo.of(TableId.of(dataset, name), definition.build()));
    }

    /** Runs a statement and returns its rows: text as it came over the wire, null as null. */
    List<List<String>> rows(String sql) throws InterruptedException {
        return rows(client.query(inDataset(sql).build()).iterateAll());
    }

    private QueryJobConfiguration.Builder inDataset(String sql) {
        return QueryJobConfiguration.newBuilder(sql).setDefaultDataset(DatasetId.of(PROJECT, dataset));
    }

    private static List<List<String>> rows(Iterable<FieldValueList> values) {
        List<List<String>> rows = new ArrayList<>();
        for (FieldValueList value : values) {
            List<String> row = new ArrayList<>();
            for (FieldValue field : value) {
                row.add(field.isNull() ? null : field.getStringValue());
            }
            rows.add(row);
        }
        return rows;
    }

    /** Changes the description, reads it back, and makes and removes a dataset. */
    private Object datasetUpdate() {
        client.update(DatasetInfo.newBuilder(dataset).setDescription("as changed").build());
        Dataset passing = client.create(DatasetInfo.newBuilder(dataset + "_passing").build());
        boolean deleted = passing.delete();
        return Map.of("description", client.getDataset(dataset).getDescription(), "deleted", deleted);
    }

    private Object definitions() {
        Table table = table("defined", true);
        Table passing = table("passing", false);
        List<String> before = tables();
        passing.delete();
        List<String> columns = new ArrayList<>();
        StandardTableDefinition found = client.getTable(table.getTableId()).getDefinition();
        found.getSchema().getFields().forEach(field -> columns.add(field.getName()));
        return Map.of("before", before, "after", tables(), "columns", columns,
            "primary_key", found.getTableConstraints().getPrimaryKey().getColumns());
    }

    private List<String> tables() {
        List<String> names = new ArrayList<>();
        client.listTables(dataset).iterateAll().forEach(table -> names.add(table.getTableId().getTable()));
        return names;
    }

    /** This client answers null for a table that is missing, and refuses to read it with the code. */
    private Object missingTable() {
        if (client.getTable(TableId.of(dataset, "missing")) != null) {
            return "found";
        }
        try {
            return client.listTableData(TableId.of(dataset, "missing")).getTotalRows();
        } catch (BigQueryException refused) {
            return refused.getCode();
        }
    }

    private Object query() throws InterruptedException {
        QueryJobConfiguration asked = QueryJobConfiguration
            .newBuilder("SELECT @number + 1, @text, (SELECT SUM(each) FROM UNNEST(@list) AS each)")
            .addNamedParameter("number", QueryParameterValue.int64(41))
            .addNamedParameter("text", QueryParameterValue.string("it's"))
            .addNamedParameter("list", QueryParameterValue.array(new Long[] {1L, 2L, 3L}, Long.class))
            .build();
        return rows(client.query(asked).iterateAll());
    }

    /** Reads five rows of a table and of a query's answer, two at a time. */
    private Object pages() throws InterruptedException {
        table("paged", false);
        rows("INSERT INTO paged (k) VALUES (1), (2), (3), (4), (5)");
        Job finished = client.create(JobInfo.of(inDataset("SELECT k FROM paged ORDER BY k").build())).waitFor();
        return Map.of(
            "query", sizes(finished.getQueryResults(BigQuery.QueryResultsOption.pageSize(2))),
            "table", sizes(client.listTableData(TableId.of(dataset, "paged"), BigQuery.TableDataListOption.pageSize(2))));
    }

    private static List<Integer> sizes(Page<FieldValueList> first) {
        List<Integer> sizes = new ArrayList<>();
        for (Page<FieldValueList> page = first; page != null; page = page.getNextPage()) {
            int size = 0;
            for (FieldValueList ignored : page.getValues()) {
                size++;
            }
            sizes.add(size);
        }
        return sizes;
    }

    /** Starts a query as a job, waits for it, finds it in the list, and reads its rows as the job's results. */
    private Object job() throws InterruptedException {
        Job started = client.create(JobInfo.of(QueryJobConfiguration.of("SELECT 1 AS one")));
        Job finished = started.waitFor();
        boolean listed = false;
        for (Job each : client.listJobs().iterateAll()) {
            listed |= each.getJobId().getJob().equals(started.getJobId().getJob());
        }
        return Map.of("done", finished.isDone(), "rows", rows(finished.getQueryResults().iterateAll()), "listed", listed);
    }
}
